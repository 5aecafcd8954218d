"""The result of a comparison: a verdict per table, and the rows that differ.

    equal        the same rows on both sides, except for changes in transit
    differs      rows differ, by key and column; or the copy or the source's table is missing
    changing     rows changed too often to be compared
    behind       rows differ, and the copy did not reach the position where the source was read
    failed       the source refuses to show the table
    set_aside    not followed, with the reason; its rows are not compared
    left         no longer published at the source; the copy stays as it was

A key is the texts of its columns. Rows are kept as hashes of their columns with the first bytes of
their texts, so that many large rows fit into memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from ingester.postgres.verify.compared_texts import AskedColumn, shown_value
from ingester.postgres.verify.row_hashes import U64, Texts, combine, hash_texts

Verdict = Literal["equal", "differs", "changing", "behind", "failed", "set_aside", "left"]
RowFault = Literal["missing", "extra", "repeated", "values"]
SHOWN_ROWS = 20
"""The number of rows named per table; others are counted."""
CLIP_BYTES = 200


class ColumnDifference(msgspec.Struct, frozen=True):
    """A differing value on both sides, as PostgreSQL writes it, possibly cut."""

    column: str
    source: str | None
    copy: str | None


class RowDifference(msgspec.Struct, frozen=True):
    """A row that is missing, extra or repeated here, or has other values."""

    key: dict[str, str | None]
    fault: RowFault
    columns: tuple[ColumnDifference, ...] = ()


class TableVerdict(msgspec.Struct, frozen=True):
    """The verdict on one table.

    Attributes:
        table: Its name here.
        source: Schema and name at the source.
        source_rows: Rows read at the source.
        copy_rows: Rows read of the copy, a little later.
        differing: The number of differing rows; a minimum if ``more`` is true.
        unsettled: Rows that differ, but may be in transit.
        rows: The first differing rows.
        reason: An explanation, if the rows are none.
        helps: What an operator can do.
    """

    table: str
    source: str
    verdict: Verdict
    source_rows: int | None = None
    copy_rows: int | None = None
    differing: int = 0
    more: bool = False
    unsettled: int = 0
    rows: tuple[RowDifference, ...] = ()
    reason: str = ""
    helps: tuple[str, ...] = ()


def all_equal(verdicts: Sequence[TableVerdict], *, ignores_set_aside: bool = False) -> bool:
    """Whether every table is equal, and there is one.

    Args:
        ignores_set_aside: accept tables that are set aside or have left.
    """
    fine = {"equal", "set_aside", "left"} if ignores_set_aside else {"equal"}
    return bool(verdicts) and all(verdict.verdict in fine for verdict in verdicts)


Key = tuple[bytes | None, ...]


class FoundRow(NamedTuple):
    """A row as read."""

    version: str
    """The source's ``xmin``, which changes with each update; empty for a copy."""
    hashes: tuple[int, ...]
    """The hash of each column's text."""
    texts: tuple[bytes | None, ...]
    """The first bytes of each text."""
    lengths: tuple[int, ...]
    """The full length of each text."""


FoundRows = dict[Key, FoundRow]


class Hashes(NamedTuple):
    keys: U64
    rows: U64


def hash_block(columns: Sequence[Texts], key_columns: int) -> Hashes:
    """The hashes of keys, which are the first columns, and of whole rows."""
    hashes = [hash_texts(texts) for texts in columns]
    return Hashes(combine(hashes[:key_columns]), combine(hashes))


def hash_keys(keys: Collection[Key]) -> U64:
    """The sorted hashes of keys."""
    columns = [texts_of(column) for column in zip(*keys, strict=True)]
    return np.sort(combine([hash_texts(texts) for texts in columns]))


def texts_of(values: Sequence[bytes | None]) -> Texts:
    """A column of single texts."""
    lengths = np.array([len(value or b"") for value in values], np.int64)
    ends = np.cumsum(lengths)
    data = np.frombuffer(b"".join(value or b"" for value in values) + b"\0" * 8, np.uint8)
    nulls = np.array([value is None for value in values], np.bool_)
    return Texts(data, ends - lengths, lengths, nulls if nulls.any() else None)


def key_texts(columns: Sequence[Texts], rows: Sequence[int]) -> list[Key]:
    """The keys of some rows of a block."""
    return [tuple(texts.text(row) for texts in columns) for row in rows]


def add_rows(
    found: FoundRows,
    columns: Sequence[Texts],
    key_columns: int,
    rows: Sequence[int],
    versions: Texts | None = None,
) -> None:
    """Add some rows of a block by key. The hashes of a repeated row are appended."""
    if not len(rows):
        return
    hashes = [hash_texts(texts) for texts in columns]
    for key, row in zip(key_texts(columns[:key_columns], rows), rows, strict=True):
        before = found[key].hashes if key in found else ()
        found[key] = FoundRow(
            "" if versions is None else (versions.text(row) or b"").decode(),
            before + tuple(int(column[row]) for column in hashes),
            tuple(texts.text(row, CLIP_BYTES) for texts in columns),
            tuple(int(texts.lengths[row]) for texts in columns),
        )


def row_difference(
    columns: Sequence[tuple[str, AskedColumn]],
    key: Key,
    source: FoundRow | None,
    copy: FoundRow | None,
) -> RowDifference:
    """How two rows of one key differ; at most one is missing.

    Args:
        columns: names here, the key's first.
    """
    named = {
        name: None if text is None else shown_value(column, text)
        for (name, column), text in zip(columns, key, strict=False)
    }
    if source is None or copy is None:
        return RowDifference(named, "missing" if copy is None else "extra")
    if len(source.hashes) != len(copy.hashes):
        return RowDifference(named, "repeated")
    differing = [
        ColumnDifference(name, _shown(column, source, at), _shown(column, copy, at))
        for at, (name, column) in enumerate(columns)
        if source.hashes[at] != copy.hashes[at]
    ]
    return RowDifference(named, "values", tuple(differing))


def _shown(column: AskedColumn, row: FoundRow, at: int) -> str | None:
    text, length = row.texts[at], row.lengths[at]
    if text is None:
        return None
    if len(text) == length:
        return shown_value(column, text)
    return f"{shown_value(column, text)}… ({length:,} bytes)"
