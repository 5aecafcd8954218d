"""Random queries over ``random_tables``; no answer depends on the order in which rows are read.

Filters are mostly comparisons of columns with literals, since those reach the scan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import pyarrow as pa

from tests.sql_logic.forms import (
    AGGREGATES,
    COMPARED,
    FORMS,
    FRAMED,
    FRAMES,
    JOINS,
    KINDS,
    LITERALS,
    PREDICATES,
    RANKED,
)
from tests.sql_logic.random_tables import BOUNDARY, TEXTS

_T = TypeVar("_T")
_HOLE = re.compile(r"\{(\w)\}")
_COMPARISONS = ["=", "=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]


@dataclass
class Scope:
    """What expressions may name: columns with their kinds, and columns that tell rows apart."""

    columns: list[tuple[str, str]] = field(default_factory=list)
    unique: list[str] = field(default_factory=list)

    def __add__(self, other: Scope) -> Scope:
        return Scope(self.columns + other.columns, self.unique + other.unique)


@dataclass(frozen=True, slots=True)
class Query:
    """A query; ``ordered`` if its answer has one order."""

    sql: str
    ordered: bool = False


class Generator:
    """Makes queries.

    Args:
        tables: the schema of each table, by the name that a query may use.
        bounded: tables in which rows with ids beyond the boundary come and go.
    """

    def __init__(
        self, random: Random, tables: Mapping[str, pa.Schema], bounded: Sequence[str] = ()
    ) -> None:
        self._random = random
        self._tables = tables
        self._bounded = bounded
        self._aliases = 0

    def query(self) -> Query:
        """Return the next query."""
        self._aliases = 0
        makers: list[tuple[int, Callable[[], Query]]] = [
            (5, self._plain), (2, self._top), (4, self._aggregated), (3, self._windowed),
            (2, self._star), (1, self._counted), (2, self._set_operation), (2, self._with),
            (1, self._recursive), (1, self._distinct_on),
        ]  # fmt: skip
        weights = [weight for weight, _ in makers]
        ((_, maker),) = self._random.choices(makers, weights)
        return maker()

    # -------------------------------------------------------------------------------- statements

    def _plain(self) -> Query:
        return Query(self._select(self._kinds()))

    def _top(self) -> Query:
        sql = self._select(self._kinds(COMPARED))
        nulls = self._pick(["", " DESC", " NULLS FIRST", " DESC NULLS LAST"])
        offset = self._pick(["", "", f" OFFSET {self._random.randrange(9)}"])
        limit = self._random.randrange(1, 40)
        return Query(f"{sql} ORDER BY ALL{nulls} LIMIT {limit}{offset}", True)

    def _aggregated(self) -> Query:
        source, scope = self._source()
        keys = [
            self._expr(scope, self._pick("iisdbE"), 1) for _ in range(self._random.randrange(3))
        ]
        shown = [f"{key} AS k{i}" for i, key in enumerate(keys)]
        shown += [self._filled(self._pick(AGGREGATES), scope, 1) for _ in range(2)]
        sql = f"SELECT {', '.join(shown)} FROM {source} WHERE {self._filter(scope)}"
        if keys:
            by = ", ".join(f"k{i}" for i in range(len(keys)))
            sql += " GROUP BY " + self._pick(
                ["ALL", by, by, f"ROLLUP ({by})", f"CUBE ({by})", f"GROUPING SETS (({by}), ())"]
            )
            having = self._filled(self._pick(["count(*) > 1", "max({i}) > 1", "true"]), scope, 0)
            sql += self._pick(["", f" HAVING {having}"])
        return Query(sql)

    def _windowed(self) -> Query:
        source, scope = self._source(unique=True)
        windows = [self._window(scope) for _ in range(self._random.choice([1, 2]))]
        columns = f"{self._listed(scope, self._kinds())}, {', '.join(windows)}"
        qualify = self._pick(["", "", f" QUALIFY {self._window(scope, RANKED)} < 3"])
        return Query(f"SELECT {columns} FROM {source} WHERE {self._filter(scope)}{qualify}")

    def _star(self) -> Query:
        source, scope = self._table()
        columns = ["*", "* EXCLUDE (g)", "* REPLACE (id + 1 AS id)", "COLUMNS('^[it].*')", "id"]
        return Query(f"SELECT {self._pick(columns)} FROM {source} WHERE {self._filter(scope)}")

    def _counted(self) -> Query:
        source, scope = self._table()
        where = self._pick(["", f" WHERE {self._filter(scope)}"])
        what = self._pick(["count(*)", "1 AS one", "count(*), min(id), max(id)"])
        return Query(f"SELECT {what} FROM {source}{where}")

    def _set_operation(self) -> Query:
        kinds = self._kinds(COMPARED)
        sql = f"({self._select(kinds)})"
        for _ in range(self._random.choice([1, 1, 2])):
            operator = self._pick(["UNION", "INTERSECT", "EXCEPT"]) + self._pick(["", " ALL"])
            sql = f"({sql} {operator} ({self._select(kinds)}))"
        return Query(f"SELECT * FROM {sql} AS u")

    def _with(self) -> Query:
        kinds = self._kinds()
        scope = Scope([(f"c.c{i}", kind) for i, kind in enumerate(kinds)])
        how = self._pick(["", "MATERIALIZED ", "NOT MATERIALIZED "])
        source = self._pick(
            ["c", "c, (SELECT count(*) AS n FROM c) AS d", "c SEMI JOIN c AS d ON c.c0 = d.c0"]
        )
        return Query(
            f"WITH c AS {how}({self._select(kinds)}) "
            f"SELECT {self._listed(scope, kinds)} FROM {source} WHERE {self._filter(scope)}"
        )

    def _recursive(self) -> Query:
        first, scope = self._table()
        other, more = self._table()
        start, union = self._filter(scope), self._pick(["UNION", "UNION ALL"])
        return Query(
            f"WITH RECURSIVE r(n, k) AS (SELECT 0, {scope.unique[0]} % 7 FROM {first} "
            f"WHERE {start} {union} SELECT r.n + 1, {more.unique[0]} % 5 FROM r "
            f"JOIN {other} ON {more.unique[0]} = r.k + r.n WHERE r.n < 3) "
            "SELECT n, k, count(*) FROM r GROUP BY ALL"
        )

    def _distinct_on(self) -> Query:
        source, scope = self._table()
        on, unique = self._expr(scope, self._pick("isd"), 1), ", ".join(scope.unique)
        return Query(
            f"SELECT DISTINCT ON ({on}) {self._listed(scope, self._kinds())} FROM {source} "
            f"WHERE {self._filter(scope)} ORDER BY {on} NULLS LAST, {unique}"
        )

    # ----------------------------------------------------------------------------- parts of them

    def _select(self, kinds: str) -> str:
        """Return a SELECT with columns ``c0``, ``c1``, … of these kinds."""
        source, scope = self._source()
        where = self._pick(["", *[f" WHERE {self._filter(scope)}"] * 4])
        if self._random.random() < 0.2 and set(kinds) <= set(COMPARED) - {"b"}:
            made = [f"{self._pick(['min', 'max'])}({self._expr(scope, kind, 1)})" for kind in kinds]
            columns = ", ".join(f"{text} AS c{i}" for i, text in enumerate(made))
            by = self._expr(scope, self._pick("isd"), 1)
            return f"SELECT {columns} FROM {source}{where} GROUP BY {by}, 1 = 1"
        distinct = "DISTINCT " if self._random.random() < 0.1 else ""
        return f"SELECT {distinct}{self._listed(scope, kinds)} FROM {source}{where}"

    def _window(self, scope: Scope, forms: Sequence[str] = ()) -> str:
        form = self._pick(forms or [*RANKED, *FRAMED])
        frame = self._pick(FRAMES) if form in FRAMED and "DISTINCT" not in form else ""
        by = self._expr(scope, self._pick("isdb"), 1)
        order = ", ".join([self._expr(scope, self._pick("isdt"), 1), *scope.unique])
        over = f"OVER (PARTITION BY {by} ORDER BY {order} {frame})"
        return f"{self._filled(form, scope, 1)} {over}"

    def _table(self) -> tuple[str, Scope]:
        name = self._pick(list(self._tables))
        self._aliases += 1
        alias = f"a{self._aliases}"
        columns = [(f"{alias}.{column}", KINDS[column]) for column in self._tables[name].names]
        if name in self._bounded:
            name = f"(SELECT * FROM {name} WHERE id < {BOUNDARY})"
        return f"{name} AS {alias}", Scope(columns, [f"{alias}.id"])

    def _source(self, *, unique: bool = False) -> tuple[str, Scope]:
        left, scope = self._table()
        choice = self._random.random()
        if choice < 0.45:
            return left, scope
        if choice < 0.8:
            return self._joined(left, scope)
        if choice < 0.86:
            right, more = self._table()
            condition = f"{scope.unique[0]} >= {more.unique[0]}"
            if self._random.random() < 0.6:
                condition = f"{scope.columns[1][0]} = {more.columns[1][0]} AND {condition}"
            kind = self._pick(["ASOF JOIN", "ASOF LEFT JOIN"])
            return f"{left} {kind} {right} ON {condition}", scope + more
        if choice < 0.93 or unique:
            inner = f"(SELECT * FROM {left} WHERE {self._filter(scope)}) AS q"
            names = [(f"q.{text.partition('.')[2]}", kind) for text, kind in scope.columns]
            return inner, Scope(names, ["q.id"])
        over = self._expr(scope, "L", 1)
        return f"{left}, unnest({over}) AS v(e)", Scope([*scope.columns, ("v.e", "i")])

    def _joined(self, left: str, scope: Scope) -> tuple[str, Scope]:
        right, more = self._table()
        both, kind = scope + more, self._pick(JOINS)
        pairs = [f"{a} = {b}" for a, b in zip(scope.unique, more.unique, strict=False)]
        pairs += [f"{scope.columns[1][0]} = {more.columns[1][0]}"] * 2
        condition = self._pick(pairs)
        if self._random.random() < 0.3:
            condition += f" AND {self._filter(both)}"
        hidden = kind in ("SEMI JOIN", "ANTI JOIN")
        return f"{left} {kind} {right} ON {condition}", scope if hidden else both

    def _filter(self, scope: Scope) -> str:
        terms = [self._term(scope) for _ in range(self._random.choice([1, 1, 1, 2, 3]))]
        text = terms[0]
        for term in terms[1:]:
            text = f"({text} {self._pick(['AND', 'AND', 'OR'])} {term})"
        return f"NOT ({text})" if self._random.random() < 0.1 else text

    def _term(self, scope: Scope) -> str:
        choice = self._random.random()
        column, kind = self._pick(scope.columns)
        if choice < 0.45 and kind in COMPARED:
            return f"{column} {self._pick(_COMPARISONS)} {self._literal(kind)}"
        if choice < 0.6:
            return f"{column} IS {self._pick(['', 'NOT '])}NULL"
        if choice < 0.9:
            return self._predicate(scope, self._pick([0, 1]))
        other, more = self._table()
        outer = self._expr(scope, "i", 0)
        inner = self._pick(more.columns[:2])[0]
        return self._pick(
            [
                f"EXISTS (SELECT 1 FROM {other} WHERE {inner} = {outer} AND {self._simple(more)})",
                f"{outer} IN (SELECT {inner} FROM {other} WHERE {self._simple(more)})",
                f"{outer} NOT IN (SELECT {inner} FROM {other} WHERE {self._simple(more)})",
                f"{outer} > (SELECT count(*) FROM {other} WHERE {inner} = {outer})",
                f"{outer} > ANY (SELECT {inner} FROM {other} WHERE {self._simple(more)})",
            ]
        )

    def _simple(self, scope: Scope) -> str:
        column, kind = self._pick([each for each in scope.columns if each[1] in COMPARED])
        return f"{column} {self._pick(_COMPARISONS)} {self._literal(kind)}"

    def _predicate(self, scope: Scope, depth: int) -> str:
        if self._random.random() < 0.3:
            kind = self._pick(COMPARED)
            left, right = self._expr(scope, kind, depth), self._expr(scope, kind, depth)
            return f"{left} {self._pick(_COMPARISONS)} {right}"
        return self._filled(self._pick(PREDICATES), scope, depth)

    # ------------------------------------------------------------------------------- expressions

    def _listed(self, scope: Scope, kinds: str) -> str:
        made = [self._expr(scope, kind, self._pick([0, 0, 1, 2])) for kind in kinds]
        return ", ".join(f"{text} AS c{i}" for i, text in enumerate(made))

    def _kinds(self, of: str = "iifEbssxdtZLKSMO") -> str:
        return "".join(self._pick(of) for _ in range(self._random.choice([1, 2, 3, 4])))

    def _expr(self, scope: Scope, kind: str, depth: int) -> str:
        columns = [name for name, of in scope.columns if of == kind]
        if depth and self._random.random() < 0.6:
            return self._filled(self._pick(FORMS[kind]), scope, depth - 1)
        if columns and self._random.random() < 0.85:
            return self._pick(columns)
        return self._literal(kind)

    def _filled(self, form: str, scope: Scope, depth: int) -> str:
        def made(hole: re.Match[str]) -> str:
            if hole[1] == "p":
                return f"({self._predicate(scope, depth)})"
            return f"({self._expr(scope, hole[1], depth)})"

        return _HOLE.sub(made, form)

    def _literal(self, kind: str) -> str:
        if kind != "s":
            return self._pick(LITERALS[kind])
        text = self._pick(TEXTS).replace("'", "''")
        return "('" + text.replace("\0", "' || chr(0) || '") + "')"

    def _pick(self, choices: Sequence[_T]) -> _T:
        return self._random.choice(choices)
