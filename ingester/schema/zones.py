"""Time zones that a table's timestamps may have.

A type may have any text for a zone, and nothing looks at it until somebody reads: then Arrow's
kernels, Python and Spark each end in an error of their own, for ever.

Law of this file: pure; what Arrow finds in the machine's IANA database counts, and of offsets the
form that all of them read.
"""

from __future__ import annotations

import re
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

# Java's offsets, Spark's that is, end at 18 hours; Python does not read "+0100".
_OFFSET = re.compile(r"[+-](0\d|1[0-7]):[0-5]\d|[+-]18:00")
_OF_THE_MACHINE = "localtime"
"""The one name of the database that means another zone elsewhere."""


_LONGEST = 64
"""Longer than any name of the database, which no text that somebody sends has to be."""


def is_zone(name: str) -> bool:
    """Whether everybody who reads a table knows this zone."""
    if name[:1] in ("+", "-"):
        return _OFFSET.fullmatch(name) is not None
    return len(name) <= _LONGEST and name != _OF_THE_MACHINE and _is_found(name)


@lru_cache(maxsize=1024)
def _is_found(name: str) -> bool:
    try:
        pc.local_timestamp(pa.scalar(0, pa.timestamp("s", name)))
    except (pa.ArrowException, ValueError):
        return False
    return True
