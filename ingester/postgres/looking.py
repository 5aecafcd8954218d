"""A look at the source: which tables it has for us now, under which names and with which columns.

    server, publication, tables ─▶ names, conditions, types ─▶ Wanted, one for each table

Law of this file: a look changes nothing. Its position in the log is from before it, so that what
the stream says up to there is older than the look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ingester.postgres.catalog import read_publication, read_server, read_tables
from ingester.postgres.collector import Shape, ShapeColumn
from ingester.postgres.facts import PublicationFacts, ServerFacts, TableFacts
from ingester.postgres.names import Names, choose
from ingester.postgres.options import Options
from ingester.postgres.planning import Wanted
from ingester.postgres.publication import Made, ensure, why_not
from ingester.postgres.slot import current_lsn, kept_from
from ingester.postgres.states import KeptColumn
from ingester.postgres.types import column_type


class Look(NamedTuple):
    """What the source had at a position of its log.

    Attributes:
        kept_from: The position from which on it kept the log for the slot.
    """

    lsn: int
    kept_from: int | None
    server: ServerFacts
    publication: PublicationFacts
    tables: tuple[Wanted, ...]
    unused: tuple[str, ...] = ()
    """Options that name what is not there."""


def look(connection: Any, options: Options) -> Look:
    """Look at the source; a publication of ours is given the tables that it lacks before.

    Raises:
        SourceFailed: the role may not.
        psycopg2.OperationalError: the server cannot be reached.
    """
    server = read_server(connection)
    publish(connection, options)
    lsn = current_lsn(connection)
    publication = read_publication(connection, options.publication)
    tables = read_tables(connection, options.publication, everything=True)
    wanted = wanted_of(tables, server, publication, options)
    kept = kept_from(connection, options.slot)
    return Look(lsn, kept, server, publication, wanted, unused(tables, options))


def unused(tables: Sequence[TableFacts], options: Options) -> tuple[str, ...]:
    """Return the names that options have and no table or column has, with their options."""
    known = {"*"}
    for table in tables:
        name = f"{table.schema}.{table.name}"
        known |= {name, *(f"{name}.{column.name}" for column in table.columns)}
    return (
        *(f"--rename {name}" for name in Names(options.renames).unused(tables)),
        *(f"--values {name}" for name in sorted(options.policies.keys() - known)),
    )


def publish(connection: Any, options: Options) -> Made:
    """Have a publication of ours with all tables that are wanted and can be followed.

    Raises:
        SourceFailed, psycopg2.OperationalError
    """
    tables = read_tables(connection, options.publication, everything=True)
    return ensure(connection, options.publication, wanted_tables(tables, options))


def wanted_tables(tables: Sequence[TableFacts], options: Options) -> list[TableFacts]:
    """Return those that the options name; views and foreign tables by name alone."""
    return choose(tables, options.tables)[0]


def wanted_of(
    tables: Sequence[TableFacts],
    server: ServerFacts,
    publication: PublicationFacts,
    options: Options,
) -> tuple[Wanted, ...]:
    """Return what is wanted of tables: those that the options name, under their names here."""
    names = Names(options.renames)
    named = wanted_tables(tables, options)
    if not (publication.ours or options.tables):
        named = [table for table in named if table.published]
    clashes = names.clashes(named)
    found = []
    for table in named:
        target = names.table(table.schema, table.name)
        hindered = why_not(table, server, publication)
        if hindered is not None:
            found.append(Wanted(target, table, (), hindered.reason, hindered.helps))
        elif not table.published:
            continue  # It is added at the next look.
        elif table.oid in clashes:
            helps = (f"--rename {table.full_name}=ANOTHER_NAME",)
            found.append(Wanted(target, table, (), clashes[table.oid], helps))
        else:
            found.append(Wanted(target, table, kept_columns(table, names, options)))
    # Of two with one name the one that can be followed has it.
    found.sort(key=lambda each: (not each.hindrance, each.facts.full_name))
    return tuple(found)


def kept_columns(table: TableFacts, names: Names, options: Options) -> tuple[KeptColumn, ...]:
    """Return how each column that the stream has is kept."""
    found = []
    for column in table.sent_columns:
        policy = options.policy(table.schema, table.name, column.name)
        kind = column_type(column, policy)
        name = names.column(table.schema, table.name, column.name)
        found.append(KeptColumn(column.name, name, str(kind.arrow), policy))
    return tuple(found)


def shape_of(target: str, facts: TableFacts, columns: Sequence[KeptColumn]) -> Shape:
    """Return the shape by which changes of a table are read."""
    by_name = {column.name: column for column in facts.columns}
    shaped = tuple(
        ShapeColumn(each.source, each.name, column_type(by_name[each.source], each.policy))
        for each in columns
    )
    left_out = tuple(c.name for c in facts.columns if c.name not in {e.source for e in columns})
    return Shape(target, facts.key, shaped, facts.identity == "f", left_out)
