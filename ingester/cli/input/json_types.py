"""Types of the columns of JSON lines, inferred block by block without loss.

Texts may be times, as in :mod:`.text_types`. A number that is not an int64 becomes a double only if
the double represents it exactly; long numbers are therefore checked in their textual form
(``tests/cli/test_text_inputs.py``).
"""

import json
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from .json_values import MEMBER, Types, parsed, wire_type
from .text_types import Numbers, TextColumn
from .text_values import fields_of, is_text

_EXACT_INTEGER = 2**53
_LONG = r"[\[\s0-9.,eE+-]*[0-9][0-9.]{14,}"
_ODD = r"[\[\s0-9.,eE+-]*[0-9]e[+-]?[0-9]{3}"  # may be beyond a double
_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]*")


class TypeClash(Exception):
    """Two values of a column have no common type."""

    def __init__(self, name: str, first: pa.DataType, other: pa.DataType) -> None:
        super().__init__(f"column {name!r}: {other} after {first}")
        self.name = name


class JsonTypes:
    """The types so far. ``known`` are given types, as Arrow's reader returns them."""

    def __init__(self, known: Types) -> None:
        self.known = {name: wire_type(kind) for name, kind in known.items()}
        self.found: Types = {}
        self._texts: dict[str, TextColumn] = {}
        self._wide: set[str] = set()
        self._numbers: dict[str, Numbers] = {}

    @property
    def unsure(self) -> bool:
        """Whether :meth:`count` must see all blocks again, as a double cannot hold a number."""
        return bool(self._numbers)

    def add(self, text: bytes) -> pa.Table:
        """Add these lines. Returns them parsed with the types so far.

        Raises:
            TypeClash, pa.ArrowException
        """
        table = self._parsed(text)
        for name, kind in self.found.items():
            column = table.column(name).combine_chunks()
            for path, leaf in leaves(name, column):
                if is_text(leaf.type):
                    self._texts.setdefault(path, TextColumn(numbers=False)).add(leaf)
                elif pa.types.is_int64(leaf.type) and _is_wide(leaf):
                    self._wide.add(path.rpartition("/")[2])
            for rounded in self.rounded(text, doubles(name, kind) - set(self._numbers)):
                self._numbers[rounded] = Numbers()
        return table

    def count(self, text: bytes) -> None:
        """Add the numbers of lines that :meth:`add` has seen, for the columns that need it."""
        for name, numbers in self._numbers.items():
            tokens = _tokens(text, name)
            if len(tokens) and not numbers.add(tokens):
                numbers.plain = numbers.in_double = False

    def types(self) -> Types:
        """The inferred types."""
        return {name: self._final(name, name, kind) for name, kind in self.found.items()}

    def _parsed(self, text: bytes) -> pa.Table:
        fields = self.known | self.found
        changed = False
        try:
            table = parsed(text, fields)
        except pa.ArrowException:
            if not self.found:
                raise
            table, changed = parsed(text, self.known), True
        for field in table.schema:
            if field.name == MEMBER:
                continue
            kind = wire_type(field.type)
            if field.name in self.known:
                if kind != self.known[field.name]:
                    raise TypeClash(field.name, self.known[field.name], kind)
                continue
            before = self.found.get(field.name)
            merged = kind if before is None else merge(field.name, before, kind)
            if before is not None and merged != before:
                for wide in doubles(field.name, merged) & self._wide:
                    self._numbers.setdefault(wide, Numbers())
            self.found[field.name] = merged
            changed = changed or merged != field.type
        return parsed(text, self.known | self.found) if changed else table

    def rounded(self, text: bytes, names: set[str]) -> Iterator[str]:
        """The names whose numbers include one that a double cannot hold."""
        if not names:
            return
        keys = "|".join(key for name in names for key in _keys(name))
        pattern = rf"(?:{keys})\s*:\s*(?:{_LONG}|(?i:{_ODD}))"
        if not pc.match_substring_regex(pa.array([text]), pattern)[0].as_py():
            return
        for name in names:
            numbers = Numbers()
            tokens = _tokens(text, name)
            if len(tokens) and not (numbers.add(tokens) and numbers.in_double):
                yield name

    def _final(self, path: str, name: str, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct(
                [
                    f.with_type(self._final(f"{path}/{f.name}", f.name, f.type))
                    for f in fields_of(kind)
                ]
            )
        if pa.types.is_list(kind):
            return pa.list_(self._final(path, name, kind.value_type))
        if pa.types.is_float64(kind) and name in self._numbers:
            return self._numbers[name].type()
        if is_text(kind) and path in self._texts:
            decided = self._texts[path].type()
            return kind if pa.types.is_null(decided) else decided
        return kind


def merge(name: str, first: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type of a column that has values of both types.

    Raises:
        TypeClash: No type holds both.
    """
    t = pa.types
    if first == other or t.is_null(other):
        return first
    if t.is_null(first):
        return other
    numbers = {pa.int64(), pa.float64()}
    if {first, other} == numbers:
        return pa.float64()
    if t.is_list(first) and t.is_list(other):
        return pa.list_(merge(name, first.value_type, other.value_type))
    if t.is_struct(first) and t.is_struct(other):
        fields = {f.name: f.type for f in fields_of(first)}
        for field in fields_of(other):
            known = fields.get(field.name, field.type)
            fields[field.name] = merge(f"{name}.{field.name}", known, field.type)
        return pa.struct(list(fields.items()))
    raise TypeClash(name, first, other)


def doubles(name: str, kind: pa.DataType) -> set[str]:
    """The names of a type's fields that are doubles."""
    if pa.types.is_struct(kind):
        return {found for f in fields_of(kind) for found in doubles(f.name, f.type)}
    if pa.types.is_list(kind):
        return doubles(name, kind.value_type)
    return {name} if pa.types.is_float64(kind) else set()


def leaves(path: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The columns inside a column that are not nested, with their paths."""
    if pa.types.is_struct(column.type):
        for field, inner in zip(fields_of(column.type), column.flatten(), strict=True):
            yield from leaves(f"{path}/{field.name}", inner)
    elif pa.types.is_list(column.type):
        yield from leaves(path, column.flatten())
    else:
        yield path, column


def _is_wide(column: pa.Array) -> bool:
    ends = pc.min_max(column).as_py()
    return ends["max"] is not None and max(-ends["min"], ends["max"]) > _EXACT_INTEGER


def _keys(name: str) -> list[str]:
    """The forms of a key in JSON: plain, and with non-ASCII characters escaped."""
    plain, escaped = (json.dumps(name, ensure_ascii=to_ascii) for to_ascii in (False, True))
    return [re.escape(key) for key in dict.fromkeys((plain, escaped))]


def _tokens(text: bytes, name: str) -> pa.Array:
    """All numbers under a key, also in lists, as text."""
    key = rb"(?:" + "|".join(_keys(name)).encode() + rb")\s*:\s*"
    found = re.findall(key + rb"(" + _NUMBER.pattern + rb")", text)
    if re.search(key + rb"\[", text):
        for numbers in re.findall(key + rb"\[([\[\]\s0-9.,eE+-]+)", text):
            found += _NUMBER.findall(numbers)
    return pa.array(found, pa.binary()).cast(pa.string())
