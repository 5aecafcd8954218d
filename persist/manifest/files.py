"""The bytes of the three kinds of manifest files.

    changelog   {"lineage": [[38, "uid"], …, [41, "uid"]]}     one JSON object a line
                {"action": "add", "path": …}
                …
                {"end": 1}                                     number of actions; none: damaged
    commit      {"version": 41, "uid": …, "parent": …, "writer": {…}, "at": …}
    snapshot    "INGSNAP1" | CRC-32C of all that follows (4, little-endian)
                | uncompressed bytes (8) | zstd of msgpack {version, uid, actions}

Law of this file: pure. What was encoded decodes to the same values; anything else raises
``DamagedFile`` and nothing besides, however broken the bytes are. A snapshot holds the shortest
actions that make its state, so both kinds are read by the same rules.

The checksum of a changelog is in its uid: a UUID of version 8, whose last 32 bits are the CRC-32C
of the lineage before it and of all lines after the first. So a lineage says what its changelogs
hold, not only how they are called. A uid of another version says nothing of the kind.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from persist.manifest.actions import Action, OtherAction, WriterIdentity
from persist.manifest.draft import Draft
from persist.manifest.errors import ActionRefused
from persist.manifest.lazy_stats import LazyAdd, decode_lazy, encode_lazy
from persist.manifest.state import EMPTY, Lineage, TableState

MAGIC = b"INGSNAP1"
# A state of a million files is below 1 GiB; a header that says more was not written by us.
MAX_SNAPSHOT_BYTES = 16 << 30

_PIECE_BYTES = 4 << 20

# Where a UUID says its version, from the low end, and the one whose bits are the maker's own.
_UUID_VERSION_BIT, _BOUND = 76, 8
_CHECKSUM_BITS = 32

_HEADER = struct.Struct("<8sIQ")
_CRC_FROM = 12  # behind the magic and the checksum itself


class DamagedFile(Exception):
    """Bytes that are not what this module writes; the message says why.

    Inside this package alone: whoever knows the file's name raises ``ManifestDamaged`` from it.
    """


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one thing that makes a version: its uid for ever, and whose version came before."""

    version: int
    uid: str
    parent: str | None
    writer: WriterIdentity
    at: str


class Changelog(NamedTuple):
    """One decoded changelog: where it stands, what it does, and how large it is."""

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
    """The body of a snapshot on its way in."""

    version: int
    uid: str
    actions: list[LazyAdd | OtherAction]


_json = msgspec.json.Encoder(enc_hook=decode_lazy)
_lineage_line = msgspec.json.Decoder(_LineageLine)
_end_line = msgspec.json.Decoder(_EndLine)
_action_lines = msgspec.json.Decoder(Action)
_commit = msgspec.json.Decoder(Commit)
_msgpack = msgspec.msgpack.Encoder(enc_hook=encode_lazy)
_snapshot = msgspec.msgpack.Decoder(_ReadSnapshot)


def encode_changelog(lineage: Lineage, actions: Sequence[Action]) -> bytes:
    """The changelog of the last version in ``lineage``."""
    return _json.encode_lines([_LineageLine(lineage=lineage)]) + _encode_rest(actions)


def encode_new_changelog(
    before: Lineage, version: int, actions: Sequence[Action]
) -> tuple[str, bytes]:
    """A fresh uid for the next ``version``, bound to what its changelog says, and that changelog.

    ``before`` is the lineage of the version that it is made on top of.
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
        raise DamagedFile(str(exc)) from exc
    if end != len(actions):
        raise DamagedFile(f"it ends after {len(actions)} actions, and should have {end}")
    _check_lineage(lineage)
    _check_bound(lineage, rest)
    return Changelog(lineage, actions, len(data))


def _check_lineage(lineage: Lineage) -> None:
    if not lineage:
        raise DamagedFile("its lineage is empty")
    first = lineage[0][0]
    for expected, (version, _) in enumerate(lineage, first):
        if version != expected:
            raise DamagedFile(f"its lineage has version {version} where {expected} should be")
    if first < 1:
        raise DamagedFile(f"its lineage begins at version {first}")


def encode_commit(commit: Commit) -> bytes:
    """Encode a commit as one JSON object, for one conditional create."""
    return _json.encode(commit)


def decode_commit(data: bytes) -> Commit:
    """The commit that :func:`encode_commit` was given, or :class:`DamagedFile`."""
    try:
        return _commit.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise DamagedFile(str(exc)) from exc


def encode_snapshot(state: TableState) -> bytes:
    """The whole of ``state``, self-contained."""
    import pyarrow as pa  # here alone in this package, for its zstd

    plain = _msgpack.encode(
        _Snapshot(version=state.version, uid=state.uid, actions=list(state.actions()))
    )
    packed: bytes = pa.compress(plain, codec="zstd", asbytes=True)
    rest = struct.pack("<Q", len(plain)) + packed
    return MAGIC + struct.pack("<I", crc32c(rest)) + rest


def decode_snapshot(data: bytes) -> TableState:
    """The state that :func:`encode_snapshot` was given, with a lineage of itself alone.

    Raises:
        DamagedFile: The bytes do not check out.
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
        draft = Draft(EMPTY)
        draft.apply(a.add() if isinstance(a, LazyAdd) else a for a in body.actions)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ActionRefused) as exc:
        raise DamagedFile(str(exc)) from exc
    except (pa.ArrowException, OSError) as exc:
        raise DamagedFile(f"it does not decompress: {exc}") from exc
    return draft.finish(body.version, body.uid, ((body.version, body.uid),))


def _decompressed(data: bytes, plain_bytes: int) -> bytearray:
    """A snapshot's body; takes the memory that it needs, and not what its header claims."""
    import pyarrow as pa

    packed = pa.BufferReader(pa.py_buffer(data).slice(_HEADER.size))
    plain = bytearray()
    with pa.CompressedInputStream(packed, "zstd") as stream:
        # Not `read`: what that has allocated stays allocated where it fails.
        while len(plain) <= plain_bytes and (piece := stream.read_buffer(_PIECE_BYTES)).size:
            plain += piece
    if len(plain) != plain_bytes:
        raise DamagedFile(f"it claims {plain_bytes} bytes uncompressed, and has {len(plain)}")
    return plain
