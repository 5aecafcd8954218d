"""The end of a Parquet file, checked before Arrow sees it.

    "PAR1" | pages … | footer | its length (4, little-endian) | "PAR1"
                     └────────── footer_crc32c ──────────────┘

Law of this file: Parquet has no checksum for its footer, and Arrow ends the whole process over some
footers that contradict themselves: a column of a row group that is of another type than the schema
says raises a C++ exception that nothing catches (seen with pyarrow 26, for 1 of 300 changed bytes).
So Arrow is given only footers that have the checksum which the manifest recorded. For files of
before there was one, the size and the frame alone are looked at. Pages have checksums of their own;
whoever decodes them asks Arrow to look.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from persist.manifest import Add

MAGIC = b"PAR1"
_FRAME = struct.Struct("<I4s")
# What is read at first: the footers of most files are smaller.
_GUESS_BYTES = 64 << 10


class FileDamaged(Exception):
    """A data file is not what was written; the message names it and says why."""


class DataFile(NamedTuple):
    """A file and what is known of it; ``path`` from the store's root."""

    path: str
    bytes: int | None = None
    footer_crc32c: int | None = None

    @classmethod
    def of(cls, add: Add, root: str) -> DataFile:
        """The file of a manifest's entry, whose path begins at ``root``."""
        return cls(f"{root}/{add.path}", add.bytes, add.footer_crc32c)


def footer_checksum(data: pa.Buffer) -> int:
    """The CRC-32C of the end of a whole file that was just written."""
    return int(crc32c(memoryview(data)[-_framed_bytes(data, "just written") :]))


def read_footer(source: pa.NativeFile, file: DataFile) -> pq.FileMetaData:
    """The metadata of an open file; mostly takes one read.

    Raises:
        FileDamaged: it does not check out.
    """
    with told(file.path):
        size = int(source.size())
        if file.bytes is not None and size != file.bytes:
            raise FileDamaged(f"file {file.path} has {size} bytes, and should have {file.bytes}")
        end = source.read_at(min(size, _GUESS_BYTES), max(0, size - _GUESS_BYTES))
        wanted = _framed_bytes(end, file.path)
        if wanted + len(MAGIC) > size:
            raise FileDamaged(f"file {file.path} has {size} bytes, its footer claims {wanted}")
        end = source.read_at(wanted, size - wanted) if wanted > len(end) else end[-wanted:]
        found = crc32c(end)
        if file.footer_crc32c is not None and found != file.footer_crc32c:
            raise FileDamaged(
                f"the footer of file {file.path} has the checksum {found:08x},"
                f" and should have {file.footer_crc32c:08x}"
            )
        return pq.read_metadata(pa.BufferReader(end))


def open_checked(source: pa.NativeFile, file: DataFile, **options: Any) -> pq.ParquetFile:
    """A reader of an open file that checks the footer now, and pages when they are decoded.

    Raises:
        FileDamaged: the footer does not check out.
    """
    footer = read_footer(source, file)
    return pq.ParquetFile(source, metadata=footer, page_checksum_verification=True, **options)


@contextmanager
def told(path: str) -> Iterator[None]:
    """Raise Arrow's error of broken bytes as :class:`FileDamaged`, and a store's as it is.

    Arrow has the same class for both; an error of the system has a number.
    """
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError) as exc:
        raise FileDamaged(f"file {path} is damaged: {exc}") from exc
    except OSError as exc:
        if type(exc) is OSError and exc.errno is None:
            raise FileDamaged(f"file {path} is damaged: {exc}") from exc
        raise


def _framed_bytes(end: Any, path: str) -> int:
    """Length of the footer with its frame, by the last bytes of a file."""
    if len(end) < _FRAME.size:
        raise FileDamaged(f"file {path} has {len(end)} bytes, less than a footer")
    length, magic = _FRAME.unpack(memoryview(end)[-_FRAME.size :])
    if magic != MAGIC:
        raise FileDamaged(f"file {path} ends with {magic!r}, not with {MAGIC!r}")
    return int(length) + _FRAME.size
