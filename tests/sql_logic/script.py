"""Parses files of SQLLogicTest: ``.test`` of SQLite and DuckDB, ``.slt`` of DataFusion and others.

    statement ok            query II rowsort           loop i 0 10
    CREATE TABLE t(a INT)   SELECT a, b FROM t         …
                            ----                       endloop
                            1  2

Loops are expanded. Records for other engines are left out. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

Sort = Literal["nosort", "rowsort", "valuesort"]
# What DuckDB's Python package has: `require parquet` and the like.
_PROVIDED = {"parquet", "json", "icu", "core_functions", "skip_reload", "vector_size", "64bit"}
_NAMES = {
    "<signed>": "tinyint smallint integer bigint hugeint",
    "<unsigned>": "utinyint usmallint uinteger ubigint uhugeint",
    "<integral>": "tinyint smallint integer bigint hugeint utinyint usmallint uinteger ubigint "
    "uhugeint",
    "<numeric>": "tinyint smallint integer bigint hugeint utinyint usmallint uinteger ubigint "
    "uhugeint float double",
    "<alltypes>": "bool tinyint smallint integer bigint hugeint utinyint usmallint uinteger "
    "ubigint uhugeint float double varchar",
}


@dataclass(frozen=True, slots=True)
class Record:
    """A statement or query of a file.

    Attributes:
        kind: ``ok`` and ``error`` are statements with that outcome; ``maybe`` has either.
        expected: The lines of the expected result; None if the file has none.
        types: A letter per column: ``I`` integer, ``R`` real, ``T`` text.
    """

    line: int
    kind: Literal["ok", "error", "maybe", "query"]
    sql: str
    types: str = ""
    sort: Sort = "nosort"
    expected: tuple[str, ...] | None = None


class Unsupported(Exception):
    """Raised for a file that needs an extension, another connection or other surroundings."""


def parse(text: str, engine: str = "duckdb") -> Iterator[Record]:
    """Yield the records of a file in order, up to ``halt``.

    Raises:
        Unsupported: The file needs what the runner lacks.
    """
    yield from _Parser(text.replace("\r\n", "\n").split("\n"), engine).records()


class _Parser:
    def __init__(self, lines: list[str], engine: str) -> None:
        self._lines = lines
        self._engine = engine

    def records(self) -> Iterator[Record]:
        yield from self._block(0, len(self._lines))

    def _block(self, at: int, end: int) -> Iterator[Record]:
        wanted, skipping = True, False
        while at < end:
            words = self._lines[at].split("#")[0].split()
            match words:
                case [("loop" | "foreach") as word, name, *values]:
                    after = self._end_of_loop(at + 1, end)
                    body = list(self._block(at + 1, after))
                    for value in _values(word, values):
                        yield from (_with(record, name, value) for record in body)
                    at = after + 1
                    continue
                case ["skipif", engine, *_]:
                    wanted = wanted and engine != self._engine
                case ["onlyif", engine, *_]:
                    wanted = wanted and engine == self._engine
                case ["mode", mode, *_]:
                    skipping = {"skip": True, "unskip": False}.get(mode, skipping)
                case ["halt"] if wanted and not skipping:
                    return
                case ["require", name, *_] if name not in _PROVIDED and not skipping:
                    raise Unsupported(f"require {name}")
                case [
                    ("require-env" | "concurrentloop" | "concurrentforeach" | "include") as word,
                    *_,
                ]:
                    raise Unsupported(word)
                case [("statement" | "query") as word, *rest]:
                    record, at = self._record(word, rest, at, end)
                    if wanted and not skipping and record is not None:
                        yield record
                    wanted = True
                    continue
            at += 1

    def _end_of_loop(self, at: int, end: int) -> int:
        depth = 1
        for line in range(at, end):
            first = self._lines[line].split()[:1]
            depth += first in (["loop"], ["foreach"])
            depth -= first == ["endloop"]
            if not depth:
                return line
        raise Unsupported("a loop without its end")

    def _record(self, word: str, rest: list[str], at: int, end: int) -> tuple[Record | None, int]:
        first = at + 1
        stop = next((i for i in range(first, end) if not self._lines[i].strip()), end)
        mark = next((i for i in range(first, stop) if self._lines[i].strip() == "----"), stop)
        sql = "\n".join(line for line in self._lines[first:mark] if not line.startswith("#"))
        expected = None
        if mark < stop:
            # Expected error messages may have empty lines; they are followed by a record.
            expected = tuple(self._lines[mark + 1 : stop])
        sql = sql.strip().rstrip(";")
        if not sql:
            return None, stop + 1
        if word == "statement":
            return self._statement(rest, at, sql), stop + 1
        if rest[:1] == ["error"]:
            return Record(at + 1, "error", sql), stop + 1
        types = rest[0] if rest else ""
        sort: Sort = "nosort"
        for each in rest[1:]:
            if re.fullmatch(r"con\d+", each):
                raise Unsupported("several connections")
            if each in ("rowsort", "sort"):
                sort = "rowsort"
            elif each == "valuesort":
                sort = "valuesort"
        return Record(at + 1, "query", sql, types, sort, expected), stop + 1

    def _statement(self, rest: list[str], at: int, sql: str) -> Record:
        if any(re.fullmatch(r"con\d+", each) for each in rest[1:]):
            raise Unsupported("several connections")
        match rest[:1]:
            case ["error"]:
                return Record(at + 1, "error", sql)
            case ["maybe"]:
                return Record(at + 1, "maybe", sql)
        return Record(at + 1, "ok", sql)


def _values(word: str, values: list[str]) -> list[str]:
    if word == "loop":
        try:
            return [str(number) for number in range(int(values[0]), min(int(values[1]), 100))]
        except (ValueError, IndexError) as exc:
            raise Unsupported("a loop over variables") from exc
    found: list[str] = []
    for value in values:
        found.extend(_NAMES[value].split() if value in _NAMES else [value])
    return found


def _with(record: Record, name: str, value: str) -> Record:
    def filled(text: str) -> str:
        return text.replace(f"${{{name}}}", value).replace(f"{{{name}}}", value)

    expected = record.expected
    return replace(
        record,
        sql=filled(record.sql),
        expected=None if expected is None else tuple(map(filled, expected)),
    )
