"""Files and pipes as streams of record batches, in memory that does not grow with the file.

    a name, a format ──▶ ``files`` ──┬─ Parquet, Arrow ──────────────────▶ pyarrow's own readers
                                     └─ text ──▶ ``source`` ─┬─▶ ``csv_rows`` ───┬─▶ ``text_rows``
                                                             └─▶ ``json_lines`` ─┘

``csv_records`` divides CSV into whole records and refuses what RFC 4180 does not allow; pyarrow's
reader parses the blocks. ``json_objects`` converts arrays and pretty-printed objects to one object
per line, and ``json_decoding`` parses lines by msgspec, without loss.

Text formats have no types. Columns get their types from the existing table or by name
(``type_names``). The other types are inferred in a first pass: ``text_types`` and ``json_types``
choose the narrowest type that holds all texts and numbers without loss. In a second pass
``text_values`` and ``json_values`` convert. ``text_rows`` makes both passes.

This room never sends anything, and never changes a value silently: a value that its type cannot
hold is refused with its row and column. ``create`` and ``write`` call it. Start reading at
``files``, then ``text_rows``.
"""
