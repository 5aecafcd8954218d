"""Types of the columns of JSON lines, inferred block by block without loss.

Texts may be times, and numbers are judged by their text, as in :mod:`.text_types`
(``tests/cli/test_text_inputs.py``).
"""

from collections.abc import Sequence
from itertools import chain
from types import NoneType
from typing import Any

import pyarrow as pa

from .json_decoding import KINDS, Repeated, written
from .json_values import NOT_FINITE, inside, number_texts
from .text_types import Numbers, TextColumn
from .text_values import Unreadable
from .type_names import MAX_DEPTH


class JsonColumn:
    """The values of one column, or inside of one, so far."""

    def __init__(self, depth: int = 1) -> None:
        self._depth = depth
        self.kind: str | None = None
        """The one of JSON's types that all values have; None if all are null."""
        self._numbers = Numbers()
        self._texts = TextColumn(numbers=False)
        self._fields: dict[str, JsonColumn] = {}
        self._items: JsonColumn | None = None

    @property
    def holds_numbers(self) -> bool:
        return self.kind == "a number"

    def add(self, values: Sequence[Any]) -> None:
        """Add these values.

        Raises:
            Unreadable: The first value that has no common type with those before it.
        """
        for found in dict.fromkeys(map(type, values)):
            if found is NoneType:
                continue
            if self._depth > MAX_DEPTH:
                raise Unreadable(0, "…", f"is nested more than {MAX_DEPTH} levels deep")
            if found is Repeated or self.kind not in (None, KINDS[found]):
                raise self._clash(values, found)
            self.kind = KINDS[found]
        if self.kind == "a number":
            self._add_numbers(values)
        elif self.kind == "a string":
            self._texts.add(pa.array(values, pa.string()))
        elif self.kind == "an object":
            self._add_fields(values)
        elif self.kind == "a list":
            self._add_items(values)

    def type(self) -> pa.DataType:
        """The type that holds all values."""
        if self.kind == "a number":
            return self._numbers.type()
        if self.kind == "a string":
            return self._texts.type()
        if self.kind == "an object":
            return pa.struct([(name, field.type()) for name, field in self._fields.items()])
        if self.kind == "a list":
            return pa.list_(pa.null() if self._items is None else self._items.type())
        return pa.null() if self.kind is None else pa.bool_()

    def _add_numbers(self, values: Sequence[Any]) -> None:
        if set(map(type, values)) <= {int, NoneType}:
            try:
                integers = pa.array(values, pa.int64()).drop_null()
            except OverflowError:
                pass
            else:
                self._numbers.add_integers(integers)
                return
        texts = number_texts(values).drop_null()
        if len(texts) and not self._numbers.add(texts):
            self._numbers.plain = self._numbers.in_double = False

    def _add_fields(self, values: Sequence[Any]) -> None:
        for name in dict.fromkeys(chain.from_iterable(filter(None, values))):
            field = self._fields.setdefault(name, JsonColumn(self._depth + 1))
            field.add([None if value is None else value.get(name) for value in values])

    def _add_items(self, values: Sequence[Any]) -> None:
        self._items = self._items or JsonColumn(self._depth + 1)
        inside(values, self._items.add)

    def _clash(self, values: Sequence[Any], found: Any) -> Unreadable:
        index, value = next((i, v) for i, v in enumerate(values) if type(v) is found)
        if isinstance(value, Repeated):
            return Unreadable(index, written(value), f"has the name {value.name!r} twice")
        why = f"is {KINDS[found]} after {self.kind}"
        if value in NOT_FINITE and self.kind == "a number":
            why += ", and a number only if the type is given, such as double"
        return Unreadable(index, written(value), why)
