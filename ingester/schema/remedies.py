"""What helps where a type is refused, in the words of who sends it. Pure.

Law of this file: each sentence names something that can be done before sending, in Arrow's terms.
"""

from __future__ import annotations

import pyarrow as pa

_INSTEAD = (
    (pa.types.is_float16, "cast it to float32, which has all of its values"),
    (pa.types.is_date64, "cast it to date32, or to timestamp('ms') where it has times"),
    (pa.types.is_time, "send an integer of the same unit, or a string"),
    (pa.types.is_duration, "send an integer of the same unit"),
    (pa.types.is_interval, "send integers, or a string"),
    (pa.types.is_union, "send a struct with a field for each of its types"),
    (pa.types.is_run_end_encoded, "decode it, in pyarrow by compute.run_end_decode"),
)


def for_type(kind: pa.DataType) -> str:
    """What to send instead of a type that no table keeps."""
    return next((text for is_kind, text in _INSTEAD if is_kind(kind)), "send another type")


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
