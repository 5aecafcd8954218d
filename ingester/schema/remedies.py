"""What helps where a type is refused, in the words of who sends it. Pure.

Law of this file: each sentence names something that can be done before sending, in Arrow's terms.
"""

from __future__ import annotations

import pyarrow as pa


def for_type(kind: pa.DataType) -> str:
    """What to send instead of a type that no table keeps; empty where nothing is known."""
    t = pa.types
    if t.is_float16(kind):
        return "; cast it to float32"
    if t.is_time(kind):
        return "; cast it to int64, or send a timestamp"
    if t.is_duration(kind):
        return f"; cast it to int64, and say {kind.unit!r} in the column's name"
    if t.is_interval(kind):
        return "; send its parts as integers"
    if t.is_date64(kind):
        return "; cast it to date32"
    if t.is_decimal(kind):
        return "; cast it to decimal128, or send a string"
    if t.is_union(kind):
        return "; send a column for each of its types"
    if t.is_run_end_encoded(kind):
        return "; decode it (pyarrow.compute.run_end_decode)"
    if isinstance(kind, pa.BaseExtensionType):
        return f"; send its storage, {kind.storage_type}"
    return ""


def for_clash(sent: pa.DataType, kept: pa.DataType) -> str:
    """How ``sent`` becomes the table's ``kept``."""
    t = pa.types
    if t.is_timestamp(sent) and t.is_timestamp(kept):
        if sent.tz and kept.tz:
            return f"; cast it to {kept}: the same moments in the table's zone"
        if kept.tz:
            return "; say in which zone its times are (pyarrow.compute.assume_timezone)"
        return "; send local times (pyarrow.compute.local_timestamp), as the table has no zone"
    return f"; cast it to {kept} before sending, or write it as a column of another name"
