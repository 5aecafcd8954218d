"""The bytes of the three kinds of manifest files. Pure.

    changelog   {"lineage": [[38, "uid"], …, [41, "uid"]]}     one JSON object a line
                {"action": "add", "path": …}
                …
                {"end": 1}                                     number of actions; none: damaged
    commit      {"version": 41, "uid": …, "parent": …, "writer": {…}, "at": …}
    snapshot    "INGSNAP1" | CRC-32C of all that follows (4, little-endian)
                | uncompressed bytes (8) | zstd of msgpack {version, uid, actions}

Encoded values decode to the same values; any other bytes raise ``DamagedFile`` and nothing else,
however broken they are (tests/persist/manifest/test_files.py, tests/fuzz). A snapshot holds the
shortest actions that make its state, so the same rules read both kinds.

A changelog's checksum is in its uid: a UUID of version 8 whose last 32 bits are the CRC-32C of the
lineage before it and of all lines after the first. A lineage therefore fixes the content of its
changelogs. Uids of other versions carry no checksum.

Statistics of a snapshot stay undecoded until they are read: a snapshot of 100,000 files with twenty
columns has two million bounds, and opening the table needs none of them.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from crc32c import crc32c

from persist.manifest.actions import Action, Add, ColumnStats, OtherAction, Values, WriterIdentity
from persist.manifest.draft import StateDraft
from persist.manifest.errors import ActionRefused
from persist.manifest.state import EMPTY, Lineage, TableState

_stats = msgspec.msgpack.Decoder(dict[str, ColumnStats])


class LazyStats(Mapping[str, ColumnStats]):
    """Bounds by column, equal to a dict of the same.

    Threads may share it: decoding twice gives the same result.
    """

    __slots__ = ("_found", "encoded")

    def __init__(self, encoded: msgspec.Raw) -> None:
        self.encoded = encoded
        """Msgpack; keeps the snapshot's bytes alive."""
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
    """An ``Add`` read from a snapshot: the same fields in the same order."""

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
        """The ``Add``, with its statistics undecoded."""
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
    """The JSON form of undecoded statistics; a hook of an encoder."""
    if isinstance(value, LazyStats):
        return dict(value)
    raise NotImplementedError(f"{type(value)} is no part of an action")


def encode_lazy(value: object) -> object:
    """The msgpack form of undecoded statistics; a hook of an encoder."""
    if isinstance(value, LazyStats):
        return value.encoded
    raise NotImplementedError(f"{type(value)} is no part of an action")


MAGIC = b"INGSNAP1"
# A state of a million files is below 1 GiB; a header that claims more is damaged.
MAX_SNAPSHOT_BYTES = 16 << 30

_PIECE_BYTES = 4 << 20

# The position of a UUID's version, from the low end, and the version for custom content.
_UUID_VERSION_BIT, _BOUND = 76, 8
_CHECKSUM_BITS = 32

_HEADER = struct.Struct("<8sIQ")
_CRC_FROM = 12  # behind the magic and the checksum itself


class DamagedFile(Exception):
    """Bytes that this module did not write; the message says why.

    Internal to this package: the caller that knows the file's name raises ``ManifestDamaged`` from
    it.
    """


class CommitRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record that makes a version: its uid, and the parent's."""

    version: int
    uid: str
    parent: str | None
    writer: WriterIdentity
    at: str


class Changelog(NamedTuple):
    """A decoded changelog: its lineage, its actions, and its size."""

    lineage: Lineage
    actions: tuple[Action, ...]
    bytes: int


class _LineageLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lineage: tuple[tuple[int, str], ...]


class _EndLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    end: int


class _Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    uid: str
    actions: list[Action]


class _ReadSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a snapshot being decoded."""

    version: int
    uid: str
    actions: list[LazyAdd | OtherAction]


_json = msgspec.json.Encoder(enc_hook=decode_lazy)
_lineage_line = msgspec.json.Decoder(_LineageLine)
_end_line = msgspec.json.Decoder(_EndLine)
_action_lines = msgspec.json.Decoder(Action)
_commit = msgspec.json.Decoder(CommitRecord)
_msgpack = msgspec.msgpack.Encoder(enc_hook=encode_lazy)
_snapshot = msgspec.msgpack.Decoder(_ReadSnapshot)


def encode_changelog(lineage: Lineage, actions: Sequence[Action]) -> bytes:
    """The changelog of the last version in ``lineage``."""
    return _json.encode_lines([_LineageLine(lineage=lineage)]) + _encode_rest(actions)


def encode_new_changelog(
    before: Lineage, version: int, actions: Sequence[Action]
) -> tuple[str, bytes]:
    """A new uid for the next ``version``, bound to its changelog, and that changelog.

    ``before`` is the lineage of the version below.
    """
    rest = _encode_rest(actions)
    fresh = uuid.uuid4().int >> _CHECKSUM_BITS << _CHECKSUM_BITS
    bound = fresh & ~(0xF << _UUID_VERSION_BIT) | _BOUND << _UUID_VERSION_BIT
    uid = uuid.UUID(int=bound | _checksum(before, version, rest)).hex
    return uid, _json.encode_lines([_LineageLine(lineage=(*before, (version, uid)))]) + rest


def _encode_rest(actions: Sequence[Action]) -> bytes:
    return _json.encode_lines([*actions, _EndLine(end=len(actions))])


def _checksum(before: Lineage, version: int, rest: bytes) -> int:
    return int(crc32c(rest, crc32c(_json.encode((before, version)))))


def _check_bound(lineage: Lineage, rest: bytes) -> None:
    version, uid = lineage[-1]
    try:
        number = uuid.UUID(hex=uid).int
    except ValueError:
        return
    if number >> _UUID_VERSION_BIT & 0xF != _BOUND:
        return
    found = _checksum(lineage[:-1], version, rest)
    expected = number & (1 << _CHECKSUM_BITS) - 1
    if found != expected:
        raise DamagedFile(f"its checksum is {found:08x}, and its uid says {expected:08x}")


def decode_changelog(data: bytes) -> Changelog:
    """The changelog that :func:`encode_changelog` was given, or :class:`DamagedFile`."""
    first, _, rest = data.partition(b"\n")
    body, _, last = rest.removesuffix(b"\n").rpartition(b"\n")
    if not rest.endswith(b"\n"):
        raise DamagedFile("its last line is cut off")
    try:
        lineage = _lineage_line.decode(first).lineage
        end = _end_line.decode(last).end
        actions: tuple[Action, ...] = tuple(_action_lines.decode_lines(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _undecodable(exc) from exc
    if end != len(actions):
        raise DamagedFile(f"it ends after {len(actions)} actions, and should have {end}")
    _check_lineage(lineage)
    _check_bound(lineage, rest)
    return Changelog(lineage, actions, len(data))


def _undecodable(exc: Exception) -> DamagedFile:
    # Well-formed, with a field, an action or a value that this release does not know.
    newer = isinstance(exc, msgspec.ValidationError)
    advice = ": a newer version of the ingester may have written it" if newer else ""
    return DamagedFile(f"{exc}{advice}")


def _check_lineage(lineage: Lineage) -> None:
    if not lineage:
        raise DamagedFile("its lineage is empty")
    first = lineage[0][0]
    for expected, (version, _) in enumerate(lineage, first):
        if version != expected:
            raise DamagedFile(f"its lineage has version {version} where {expected} should be")
    if first < 1:
        raise DamagedFile(f"its lineage begins at version {first}")


def encode_commit(commit: CommitRecord) -> bytes:
    """A commit as one JSON object."""
    return _json.encode(commit)


def decode_commit(data: bytes) -> CommitRecord:
    """The commit that :func:`encode_commit` was given, or :class:`DamagedFile`."""
    try:
        return _commit.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _undecodable(exc) from exc


def encode_snapshot(state: TableState) -> bytes:
    """The whole of ``state``, self-contained."""
    import pyarrow as pa  # only for zstd

    plain = _msgpack.encode(
        _Snapshot(version=state.version, uid=state.uid, actions=list(state.actions()))
    )
    packed: bytes = pa.compress(plain, codec="zstd", asbytes=True)
    rest = struct.pack("<Q", len(plain)) + packed
    return MAGIC + struct.pack("<I", crc32c(rest)) + rest


def decode_snapshot(data: bytes) -> TableState:
    """The state that :func:`encode_snapshot` was given, with a lineage of itself only.

    Raises:
        DamagedFile: The bytes fail their checks.
    """
    import pyarrow as pa

    if len(data) < _HEADER.size:
        raise DamagedFile(f"it has {len(data)} bytes, less than a header")
    magic, checksum, plain_bytes = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise DamagedFile(f"it begins with {magic!r}")
    found = crc32c(memoryview(data)[_CRC_FROM:])
    if found != checksum:
        raise DamagedFile(f"its checksum is {found:08x}, and should be {checksum:08x}")
    if plain_bytes > MAX_SNAPSHOT_BYTES:
        raise DamagedFile(f"it claims {plain_bytes} bytes uncompressed")
    try:
        body = _snapshot.decode(_decompressed(data, plain_bytes))
        draft = StateDraft(EMPTY)
        draft.apply(a.add() if isinstance(a, LazyAdd) else a for a in body.actions)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ActionRefused) as exc:
        raise _undecodable(exc) from exc
    except (pa.ArrowException, OSError) as exc:
        raise DamagedFile(f"it does not decompress: {exc}") from exc
    return draft.finish(body.version, body.uid, ((body.version, body.uid),))


def _decompressed(data: bytes, plain_bytes: int) -> bytearray:
    """A snapshot's body; allocates what it needs, not what its header claims."""
    import pyarrow as pa

    packed = pa.BufferReader(pa.py_buffer(data).slice(_HEADER.size))
    plain = bytearray()
    with pa.CompressedInputStream(packed, "zstd") as stream:
        # Not `read`, which keeps its allocation if it fails.
        while len(plain) <= plain_bytes and (piece := stream.read_buffer(_PIECE_BYTES)).size:
            plain += piece
    if len(plain) != plain_bytes:
        raise DamagedFile(f"it claims {plain_bytes} bytes uncompressed, and has {len(plain)}")
    return plain
