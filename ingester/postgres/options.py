"""The options of a replication, and the names of tables and columns here.

    public.orders ─▶ orders          sales.orders ─▶ sales.orders      public."a.b" ─▶ a-2e-b
    public._jobs  ─▶ x--5f-jobs      public."Ü 1" ─▶ x--dc--20-1       _id ─▶ x_id

Two tables never get the same name (``tests/postgres/test_names.py``): a character that names here
cannot contain becomes ``-<hex of its code point>-``, and so does ``-`` itself; a name that is cut
ends in a hash of the whole. Only renames can clash, and clashes are reported.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, NamedTuple, get_args

from ingester.client import AckLevel
from ingester.errors import BadRequest
from ingester.postgres.facts import TableFacts
from ingester.postgres.types import Policy
from ingester.schema.limits import check_column_names, check_shown, check_table_name

OnRemoved = Literal["keep", "empty"]


class BadOption(ValueError):
    """An invalid option."""


@dataclass(frozen=True)
class Options:
    """The options of a replication.

    Attributes:
        dsn: The database, as libpq takes it.
        tables: Tables to follow; empty for all of the publication.
        origin: The origin at the daemon; derived from system, database and slot if empty.
        renames: Names here by ``schema.table`` or ``schema.table.column``.
        policies: Policies for values that do not fit, by ``schema.table.column``,
            ``schema.table`` or ``*``.
        on_removed: What to do with a table here that is no longer published.
        resync: Tables to copy again at the start.
        resync_all: Copy all tables again, also if the slot is missing or another one.
        resume: Read on although reading has ended in crashes of the server.
        ack: Level of the acknowledgements; None for that of the tables.
    """

    dsn: str
    namespace: str
    tables: tuple[str, ...] = ()
    publication: str = "ingester"
    slot: str = "ingester"
    origin: str = ""
    renames: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, Policy] = field(default_factory=dict)
    on_removed: OnRemoved = "keep"
    resync: frozenset[str] = frozenset()
    resync_all: bool = False
    resume: bool = False
    ack: AckLevel | None = None
    look_every_s: float = 10.0
    heartbeat_s: float = 10.0

    def policy(self, schema: str, table: str, column: str) -> Policy:
        """The column's policy: the most specific one given."""
        for name in (f"{schema}.{table}.{column}", f"{schema}.{table}", "*"):
            if name in self.policies:
                return self.policies[name]
        return "refuse"


def parse_pairs(what: str, texts: Iterable[str]) -> dict[str, str]:
    """Parse ``name=value`` texts.

    Raises:
        BadOption: not a pair, or a name with two values.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not (name and equals and value):
            raise BadOption(f"{what} {text!r} is not NAME=VALUE")
        if found.setdefault(name, value) != value:
            raise BadOption(f"{what}: {name!r} is given twice")
    return found


def parse_policies(texts: Iterable[str]) -> dict[str, Policy]:
    """Parse texts such as ``public.t.column=null``.

    Raises:
        BadOption: unknown policy.
    """
    found: dict[str, Policy] = {}
    for name, value in parse_pairs("--values", texts).items():
        for policy in get_args(Policy):
            if value == policy:
                found[name] = policy
        if name not in found:
            raise BadOption(
                f"--values {name}={value}: expected one of {', '.join(get_args(Policy))}"
            )
    return found


_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_WORDS = """
all analyse analyze and any array as asc asymmetric authorization between bigint binary bit
boolean both case cast char character check coalesce collate collation column concurrently
constraint create cross current_catalog current_date current_role current_schema current_time
current_timestamp current_user dec decimal default deferrable desc distinct do else end except
exists extract false fetch float for foreign freeze from full grant greatest group grouping
having ilike in initially inner inout int integer intersect interval into is isnull join json
lateral leading least left like limit localtime localtimestamp national natural nchar none
normalize not notnull null nullif numeric offset on only or order out outer overlaps overlay
placing position precision primary real references returning right row select session_user setof
similar smallint some substring symmetric system_user table tablesample then time timestamp to
trailing treat trim true union unique user using values varchar variadic verbose when where
window with xmlattributes
"""
_RESERVED = frozenset(_WORDS.split())
DEFAULT_SCHEMA = "public"
MAX_BYTES = 128
_OTHER = re.compile(r"[^A-Za-z0-9_]")
_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
_HASH_DIGITS = 16


def quoted(name: str) -> str:
    """The identifier as SQL, quoted if necessary."""
    if _PLAIN.fullmatch(name) and name not in _RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def quoted_table(schema: str, name: str) -> str:
    return f"{quoted(schema)}.{quoted(name)}"


class BadRename(ValueError):
    """A rename that names no table or column, or an invalid new name."""


class Clash(NamedTuple):
    """Why a table cannot have its names here, and the options that help."""

    reason: str
    helps: tuple[str, ...]


class Names:
    """The names of source tables and columns here."""

    def __init__(self, renames: Mapping[str, str] | None = None) -> None:
        """Parse renames.

        Args:
            renames: new names by ``schema.table`` or ``schema.table.column``; parts with a dot are
                in double quotes, as in SQL. The schema ``public`` of a table may be omitted.

        Raises:
            BadRename
        """
        self._tables: dict[tuple[str, str], str] = {}
        self._columns: dict[tuple[str, str, str], str] = {}
        for source, name in (renames or {}).items():
            self._take(source, name)

    def table(self, schema: str, name: str) -> str:
        """The table's name here, 1 to 128 bytes."""
        if renamed := self._tables.get((schema, name)):
            return renamed
        parts = [name] if schema == DEFAULT_SCHEMA else [schema, name]
        found = ".".join(_encoded(part) for part in parts)
        if len(found) <= MAX_BYTES:
            return found
        digest = hashlib.sha256(found.encode()).hexdigest()[:_HASH_DIGITS]
        return f"{found[: MAX_BYTES - _HASH_DIGITS - 1]}-{digest}"

    def column(self, schema: str, table: str, column: str) -> str:
        """The column's name here."""
        if renamed := self._columns.get((schema, table, column)):
            return renamed
        return f"x{column}" if column.startswith("_") else column

    def clashes(self, tables: Iterable[TableFacts]) -> dict[int, Clash]:
        """Explain, by OID, which tables cannot have their names."""
        found: dict[int, Clash] = {}
        by_name: dict[str, list[TableFacts]] = defaultdict(list)
        for table in tables:
            by_name[self.table(table.schema, table.name)].append(table)
            columns = [
                self.column(table.schema, table.name, each.name) for each in table.sent_columns
            ]
            try:
                check_column_names(columns, ())
                for column in columns:
                    check_shown("column", column)
            except BadRequest as exc:
                reason = f"{exc}, by the names that its columns would have here"
                found[table.oid] = Clash(reason, self._column_renames(table, columns))
        taken = {each.casefold() for each in by_name}
        for name, those in by_name.items():
            for table in those if len(those) > 1 else ():
                others = ", ".join(each.full_name for each in those if each.oid != table.oid)
                reason = f"{others} would also be named {name!r} here"
                other = _free(name[: MAX_BYTES - 4], taken)
                taken.add(other.casefold())
                found[table.oid] = Clash(reason, (_rename((table.schema, table.name), other),))
        return found

    def _column_renames(self, table: TableFacts, columns: list[str]) -> tuple[str, ...]:
        """Renames by which all columns can have their names."""
        taken = {name.casefold() for name in columns}
        found, seen = [], set()
        for column, name in zip(table.sent_columns, columns, strict=True):
            if not (_is_name(name) and name.casefold() not in seen):
                name = _free(name.lower() if _is_name(name) else f"column_{column.number}", taken)
                taken.add(name.casefold())
                found.append(_rename((table.schema, table.name, column.name), name))
            seen.add(name.casefold())
        return tuple(found)

    def unused(self, tables: Iterable[TableFacts]) -> list[str]:
        """Renames that match none of these tables and columns, as ``schema.table[.column]``."""
        known: set[tuple[str, ...]] = set()
        for table in tables:
            known.add((table.schema, table.name))
            known |= {(table.schema, table.name, column.name) for column in table.columns}
        return sorted(".".join(each) for each in {*self._tables, *self._columns} - known)

    def _take(self, source: str, name: str) -> None:
        parts = split_name(source)
        try:
            if len(parts) == 3:
                check_column_names([name], ())
                check_shown("column", name)
                self._columns[parts[0], parts[1], parts[2]] = name
            elif len(parts) == 2:
                self._tables[parts[0], parts[1]] = check_table_name("table", name)
            else:
                raise BadRename(
                    f"rename of {source!r}: expected schema.table or schema.table.column, with"
                    " double quotes around parts that contain a dot"
                )
        except BadRequest as exc:
            raise BadRename(f"rename of {source!r}: {exc}") from exc


def _is_name(column: str) -> bool:
    """Whether a column can have this name."""
    try:
        check_column_names([column], ())
        check_shown("column", column)
    except BadRequest:
        return False
    return True


def _free(name: str, taken: set[str]) -> str:
    """The name with the first number that is not taken."""
    return next(each for n in count(2) if (each := f"{name}{n}").casefold() not in taken)


def _rename(parts: tuple[str, ...], name: str) -> str:
    """The option, for a shell."""
    dotted = ".".join(
        '"' + part.replace('"', '""') + '"' if set(part) & set('."') else part for part in parts
    )
    return f"--rename {shlex.quote(f'{dotted}={name}')}"


def choose(
    tables: Iterable[TableFacts], wanted: Iterable[str]
) -> tuple[list[TableFacts], list[str]]:
    """The tables with these names, and the unknown names; without names all tables.

    Views and foreign tables are chosen only by name.

    Raises:
        BadRename: not a valid name.
    """
    names = {split_name(text): text for text in wanted}
    if not names:
        return [table for table in tables if table.kind in "rp"], []
    found = [table for table in tables if (table.schema, table.name) in names]
    for table in found:
        names.pop((table.schema, table.name), None)
    return found, sorted(names.values())


def split_name(text: str) -> tuple[str, ...]:
    """The parts of a dotted name; a single part is a table of ``public``.

    Raises:
        BadRename: no part, an empty part, or an unterminated quote.
    """
    parts: list[str] = []
    at = 0
    while True:
        found = _PART.match(text, at)
        if found is None or text[found.end() : found.end() + 1] not in ("", "."):
            raise BadRename(f'{text!r} is no table name: expected schema.table or "schema"."table"')
        parts.append(found[2] or found[1].replace('""', '"'))
        at = found.end() + 1
        if found.end() == len(text):
            return (DEFAULT_SCHEMA, *parts) if len(parts) == 1 else tuple(parts)


def _encoded(part: str) -> str:
    """Keep letters, digits and ``_``; the result starts with a letter or digit."""
    found = _OTHER.sub(_code, part)
    if part.startswith("_"):
        found = f"{_hex('_')}{found[1:]}"
    return f"x-{found}" if not found[0].isalnum() else found


def _code(match: re.Match[str]) -> str:
    return _hex(match[0])


def _hex(character: str) -> str:
    return f"-{ord(character):x}-"
