"""A dry run of a start: ``ingester replicate postgres --check``.

    connect ──▶ facts ──▶ problems of the server, and of each table ──▶ Check

The source is only read; its replication connection runs no command that creates anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import msgspec

from ingester.postgres.catalog import read_publication, read_server, read_slot, read_tables
from ingester.postgres.conditions import Hindrance, breaks_writes, notes, server_hindrances
from ingester.postgres.connection import ask, connect, source_text
from ingester.postgres.facts import PublicationFacts, ServerFacts, SlotFacts, TableFacts
from ingester.postgres.options import Clash, Names, choose
from ingester.postgres.publication import commands, plan_publication, planned_hindrance
from ingester.postgres.server_errors import SourceFailed


class CheckedTable(msgspec.Struct, frozen=True):
    """A table of the source, its name here, and whether it can be followed."""

    source: str
    table: str
    can_be_followed: bool
    reason: str = ""
    helps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    breaks: str = ""
    """Which statements fail at the source because it is published; empty if none."""


class Check(msgspec.Struct, frozen=True):
    """The result of a dry run."""

    source: str
    server: ServerFacts
    publication: PublicationFacts
    slot: SlotFacts
    problems: tuple[Hindrance, ...]
    """Problems that prevent following any table."""
    tables: tuple[CheckedTable, ...]
    would_run: tuple[str, ...]

    @property
    def is_fine(self) -> bool:
        """Whether everything can be followed."""
        return not self.problems and all(table.can_be_followed for table in self.tables)


def check(
    dsn: str, publication: str, slot: str, tables: Sequence[str] = (), names: Names | None = None
) -> Check:
    """Check the server, the slot, the publication and its tables.

    Args:
        tables: ``schema.table`` of those to check; empty for all.
    """
    names = names or Names()
    with closing(connect(dsn)) as connection:
        server = read_server(connection)
        published = read_publication(connection, publication)
        standing = read_slot(connection, slot)
        found = read_tables(connection, publication, everything=True)
    chosen, unknown = choose(found, tables)
    problems = [*server_hindrances(server, published, standing)]
    if not problems:
        problems += _reached(dsn, server)
    problems += [
        Hindrance(f"table {text} does not exist", ("correct --tables",)) for text in unknown
    ]
    problems += [
        Hindrance(f"--rename {text}: no such table or column", ("correct --rename",))
        for text in names.unused(found)
    ]
    clashes = names.clashes(chosen)
    return Check(
        source_text(dsn),
        server,
        published,
        standing,
        tuple(problems),
        tuple(_checked(table, server, published, names, clashes) for table in chosen),
        tuple(
            commands(publication, plan_publication(server, published, chosen), server.version_num)
        ),
    )


def _reached(dsn: str, server: ServerFacts) -> list[Hindrance]:
    """Why a replication connection fails, or reaches another server."""
    import psycopg2

    try:
        with closing(connect(dsn, replication=True)) as connection:
            [(identifier, *_)] = ask(connection, "IDENTIFY_SYSTEM")
    except SourceFailed as exc:
        return [Hindrance(f"no replication connection: {exc}", exc.helps)]
    except psycopg2.OperationalError as exc:
        return [Hindrance(f"no replication connection: {exc}")]
    if identifier != server.system_identifier:
        return [
            Hindrance(
                "the replication connection reaches another server than the plain one",
                ("name one server in the DSN, not a pooler or several hosts",),
            )
        ]
    return []


def _checked(
    table: TableFacts,
    server: ServerFacts,
    publication: PublicationFacts,
    names: Names,
    clashes: dict[int, Clash],
) -> CheckedTable:
    found = planned_hindrance(table, server, publication)
    if found is None and (clash := clashes.get(table.oid)):
        found = Hindrance(clash.reason, clash.helps)
    broken = breaks_writes(table, publication)
    return CheckedTable(
        table.full_name,
        names.table(table.schema, table.name),
        found is None,
        "" if found is None else found.reason,
        () if found is None else found.helps,
        notes(table, server) if found is None else (),
        "" if broken is None else broken.reason,
    )
