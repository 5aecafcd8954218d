"""What other libraries turn into Arrow without its meaning is refused: nobody would notice. Pure.

times with and without a zone, mixed     Arrow takes the zone of the first, or none
pandas' periods and intervals            become integers in a daemon, which has no such type
Polars' Object                           becomes addresses in memory
"""

import datetime
import sys
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
    is_objects = isinstance(values, list | tuple) or str(getattr(values, "dtype", "")) == "object"
    if pa.types.is_timestamp(kind) and is_objects:
        zoned = {v.tzinfo is not None for v in values if isinstance(v, datetime.datetime)}
        if len(zoned) > 1:
            raise InvalidRequest(
                f"column {name!r} has times with a zone and times without: say the zone of each, as"
                " time.replace(tzinfo=datetime.timezone.utc)"
            )


def check_objects(data: Any) -> None:
    """Refuse a frame of Polars that holds objects of Python."""
    polars = sys.modules.get("polars")
    if polars is None or not isinstance(data, polars.DataFrame):
        return
    for column, kind in data.schema.items():
        if kind == polars.Object:
            raise InvalidRequest(
                f"column {column!r} holds objects of Python, which no table can keep: make them"
                " text, numbers or structs"
            )
