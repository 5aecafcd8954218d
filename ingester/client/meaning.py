"""Values that other libraries turn into Arrow without their meaning are refused. Pure.

Nobody would notice:

    times with and without a zone, mixed     Arrow takes the zone of the first, or none
    pandas' periods and intervals            become integers in a daemon, which has no such type
    Polars' Object                           becomes addresses in memory
"""

import datetime
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from .errors import InvalidRequest


def check_meaning(name: str, values: Any, kind: pa.DataType) -> None:
    """Whether ``values`` mean in Arrow's ``kind`` what they mean as they are.

    Raises:
        InvalidRequest: they do not; the message says what to write instead.
    """
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name.startswith("pandas."):
        raise InvalidRequest(
            f"column {name!r}: a {kind.extension_name} is no type of a table: write timestamps"
            f" (frame[{name!r}].dt.to_timestamp()) or text (frame[{name!r}].astype(str))"
        )
    if isinstance(values, list | tuple) or str(getattr(values, "dtype", "")) == "object":
        for leaf, objects in _leaves(kind, values):
            _check_times(name, leaf, [v for v in objects if isinstance(v, datetime.datetime)])


def _check_times(name: str, kind: pa.DataType, times: list[Any]) -> None:
    if pa.types.is_date32(kind) and times:
        raise InvalidRequest(
            f"column {name!r} has dates and times: make all of them times, as"
            " datetime.datetime(2026, 11, 21), or dates, as time.date()"
        )
    if len({time.tzinfo is not None for time in times}) > 1:
        raise InvalidRequest(
            f"column {name!r} has times with a zone and times without: say the zone of each, as"
            " time.replace(tzinfo=datetime.timezone.utc)"
        )
    if any(getattr(time, "nanosecond", 0) for time in times):
        raise InvalidRequest(
            f"column {name!r} has nanoseconds in a list of objects, which Arrow would cut off:"
            " write a pandas.Series of them, into a table that keeps nanoseconds, or round them"
        )


def _leaves(
    kind: pa.DataType, values: Iterable[Any]
) -> Iterator[tuple[pa.DataType, Iterable[Any]]]:
    """The times in Python's objects that became a nested type, by where they are in it."""
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        yield kind, values
    elif pa.types.is_list(kind):
        lists = [v for v in values if isinstance(v, list | tuple)]
        yield from _leaves(kind.value_type, itertools.chain.from_iterable(lists))
    elif pa.types.is_struct(kind):
        structs = [v for v in values if isinstance(v, Mapping)]
        for field in (kind.field(i) for i in range(kind.num_fields)):
            yield from _leaves(field.type, [struct.get(field.name) for struct in structs])


def check_objects(data: Any) -> None:
    """Refuse a frame of Polars that holds objects of Python."""
    polars = sys.modules.get("polars")
    frame = getattr(polars, "DataFrame", None)  # none yet while another thread imports it
    if polars is None or frame is None or not isinstance(data, frame):
        return
    for column, kind in data.schema.items():
        if kind == polars.Object:
            raise InvalidRequest(
                f"column {column!r} holds objects of Python, which no table can keep: make them"
                " text, numbers or structs"
            )
