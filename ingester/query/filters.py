"""The filter of a question, checked against its table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ingester.errors import InvalidRequest
from persist.predicate import parse as filters
from persist.predicate.predicate import Predicate


def parse_filter(filter_: Sequence[Sequence[Sequence[Any]]] | None, schema: pa.Schema) -> Predicate:
    """The predicate that a filter stands for.

    Raises:
        InvalidRequest: unknown column or operator, or a value that is not of the column's type.
    """
    try:
        return filters.parse_filter(filter_, schema)
    except filters.BadFilter as exc:
        raise InvalidRequest(str(exc)) from exc
