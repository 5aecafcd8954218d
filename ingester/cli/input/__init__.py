"""Files and pipes as streams of record batches, in memory that does not grow with the file.

    a name, a format ──▶ ``files`` ──┬─ Parquet, Arrow ────────────────────▶ pyarrow's own readers
                                     └─ text ──▶ ``source`` ──▶ ``csv_rows`` or ``json_lines``

A text format has no types. Where the table exists, its types count, and those that are told by
name (``type_names``); the others are found in two passes: ``text_types`` and ``json_types`` see all
texts and numbers and settle on the narrowest type that holds each of them without loss, then
``text_values`` and ``json_values`` make the values, or say which text is none. ``json_objects``
brings arrays and pretty-printed objects into the form of one object a line.

This room never sends anything, and never changes a value in silence: what a type does not hold is
refused with its row and column. ``create`` and ``write`` are its callers. Start reading at
``files``, then ``csv_rows``.
"""
