"""The form of a Parquet file's pages: codec, level, and leaves that have statistics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compression:
    """The codec of a file's pages, as pyarrow names it, and its level; ``None`` is its default."""

    codec: str = "zstd"
    level: int | None = None

    @classmethod
    def parse(cls, text: str) -> Compression:
        """Read ``zstd``, ``zstd:9``, ``snappy``, ``gzip:6``, ``lz4``, ``none``.

        Raises:
            ValueError: no such codec, or no such level of it.
        """
        codec, separator, level = text.partition(":")
        if codec not in CODECS:
            raise ValueError(f"compression {text!r}: none of {', '.join(CODECS)}")
        if not separator:
            return cls(codec)
        levels = CODECS[codec]
        if not level.isdecimal() or int(level) not in levels:
            asked = f"{levels[0]} to {levels[-1]}" if levels else "none"
            raise ValueError(f"compression {text!r}: levels of {codec} are {asked}")
        return cls(codec, int(level))


CODECS = {
    "zstd": range(1, 23),
    "gzip": range(1, 10),
    "snappy": range(0),
    "lz4": range(0),
    "none": range(0),
}
"""The codecs that every reader of Parquet has, and their levels."""
ZSTD = Compression()


@dataclass(frozen=True, slots=True)
class Pages:
    """The form of pages, and the leaves with statistics: :mod:`persist.parquet.leaf_stats`."""

    compression: Compression = ZSTD
    statistics: list[str] | bool = True


PAGES = Pages()
