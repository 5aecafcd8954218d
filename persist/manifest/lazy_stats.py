"""Files of a snapshot whose statistics wait in its bytes until somebody asks for them.

Law of this file: pure. A snapshot of 100,000 files with twenty columns has two million bounds, and
opening the table needs none of them: they stay msgpack, checked by the snapshot's checksum, and
are decoded file by file. Whoever holds such a file sees the same values as in a changelog's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from persist.manifest.actions import Add, ColumnStats, Values

_stats = msgspec.msgpack.Decoder(dict[str, ColumnStats])


class LazyStats(Mapping[str, ColumnStats]):
    """Bounds by column, equal to a dict of the same.

    Threads may share it: who comes first decodes, and decoding twice gives the same.
    """

    __slots__ = ("_found", "encoded")

    def __init__(self, encoded: msgspec.Raw) -> None:
        self.encoded = encoded
        """Msgpack; keeps the bytes that it is a part of."""
        self._found: dict[str, ColumnStats] | None = None

    def _decoded(self) -> dict[str, ColumnStats]:
        found = self._found
        if found is None:
            found = self._found = _stats.decode(self.encoded)
        return found

    def __getitem__(self, name: str) -> ColumnStats:
        return self._decoded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    def __len__(self) -> int:
        return len(self._decoded())

    def __repr__(self) -> str:
        return repr(self._decoded())


class LazyAdd(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="action", tag="add"
):
    """An ``Add`` on its way out of a snapshot: the same fields in the same order."""

    path: str
    kind: Literal["persist", "rewrite", "push"]
    rows: int
    bytes: int
    spec_id: int
    values: Values
    stats: msgspec.Raw
    writer: str
    epoch: int
    first_seq: int
    last_seq: int
    schema_id: int
    at: str
    footer_crc32c: int | None = None

    def add(self) -> Add:
        """The file, without a look at its statistics."""
        return Add(
            self.path,
            self.kind,
            self.rows,
            self.bytes,
            self.spec_id,
            self.values,
            LazyStats(self.stats),
            self.writer,
            self.epoch,
            self.first_seq,
            self.last_seq,
            self.schema_id,
            self.at,
            self.footer_crc32c,
        )


def decode_lazy(value: object) -> object:
    """The JSON form of statistics that were not decoded yet; a hook of an encoder."""
    if isinstance(value, LazyStats):
        return dict(value)
    raise NotImplementedError(f"{type(value)} is no part of an action")


def encode_lazy(value: object) -> object:
    """The msgpack form of statistics that were not decoded yet; a hook of an encoder."""
    if isinstance(value, LazyStats):
        return value.encoded
    raise NotImplementedError(f"{type(value)} is no part of an action")
