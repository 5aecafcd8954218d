"""Whether a server and a table can be replicated, and what helps if not.

    ServerFacts, PublicationFacts, SlotFacts  ──▶ server_hindrances ──▶ Hindrance, …
    TableFacts, ServerFacts, PublicationFacts ──▶ hindrance         ──▶ Hindrance | None
                                              ──▶ notes             ──▶ what is left out or costs

A table is replicated only if the log contains its changes completely. Each reason is one sentence,
with the SQL that helps. All problems of a server are reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from ingester.postgres.facts import Leaf, PublicationFacts, ServerFacts, SlotFacts, TableFacts
from ingester.postgres.options import quoted, quoted_table
from ingester.postgres.server_errors import (
    APPLICATION_NAME,
    FREE_SENDER,
    FREE_SLOT,
    LOST_SLOT,
    WAL_LEVEL,
)

TRUNCATES_SINCE = 110_000
"""Older servers do not put TRUNCATE into the stream."""
GENERATED_SINCE = 180_000
"""Servers from this version can publish generated columns."""
_BY_NAME = {
    24: "regproc",
    2202: "regprocedure",
    2203: "regoper",
    2204: "regoperator",
    2205: "regclass",
    2206: "regtype",
    3734: "regconfig",
    3769: "regdictionary",
    4089: "regnamespace",
    4096: "regrole",
    4191: "regcollation",
}
"""Types whose text is the current name of an object."""
OLDEST = 100_000
"""pgoutput exists since PostgreSQL 10."""
MAX_NAME_BYTES = 63
"""The server silently cuts longer names, and would not find them again."""
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")


class Hindrance(msgspec.Struct, frozen=True):
    """Why something cannot be replicated."""

    reason: str
    helps: tuple[str, ...] = ()
    """Commands, or sentences if no command helps."""


def hindrance(
    table: TableFacts, server: ServerFacts, publication: PublicationFacts
) -> Hindrance | None:
    """Why the table cannot be followed as it is published; None if it can."""
    return obstacle(table, server, publication) or _publishing(table, server, publication)


def obstacle(
    table: TableFacts, server: ServerFacts, publication: PublicationFacts
) -> Hindrance | None:
    """Why the table could not be followed, whatever is published."""
    for check in _CHECKS:
        if found := check(table, server, publication):
            return found
    return None


def breaks_writes(table: TableFacts, publication: PublicationFacts) -> Hindrance | None:
    """Why UPDATE and DELETE of a published table fail at the source; None if they do not."""
    if not table.published or not (publication.updates or publication.deletes):
        return None
    what = " and ".join(
        word
        for word, published in (("UPDATE", publication.updates), ("DELETE", publication.deletes))
        if published
    )
    fail = (
        f"{what} of {table.full_name} fail at the source: publication {publication.name!r}"
        " publishes them, and"
    )
    out = () if publication.all_tables else (f"{_alter(publication)} DROP TABLE {_sql(table)}",)
    for each in table.leaves or (table,):
        key = each.key if isinstance(each, Leaf) else each.identity_key
        if each.identity != "f" and not key:
            full = f"ALTER TABLE {_sql(table)} REPLICA IDENTITY FULL"
            return Hindrance(f"{fail} the table has no replica identity", (*out, full))
    missing = {column.name for column in table.columns if not (column.sent or column.generated)}
    if missing and (table.identity == "f" or missing.intersection(table.identity_key)):
        return Hindrance(f"{fail} its column list omits part of the replica identity", out)
    return None


def notes(table: TableFacts, server: ServerFacts | None = None) -> tuple[str, ...]:
    """The omissions and costs of a followed table, one sentence each."""
    found: list[str] = []
    left_out = [column.name for column in table.columns if column.generated and not column.sent]
    if left_out:
        found.append(
            f"{_listed(left_out)}: generated columns are not in the log and are left out; compute"
            f" {_them(left_out)} where the table is read"
        )
    named = [
        f"{column.name} ({_BY_NAME[column.base_oid]})"
        for column in table.sent_columns
        if column.base_oid in _BY_NAME
    ]
    if named:
        found.append(
            f"{_listed(named)}: stored as a name; a later rename of the object is not followed"
        )
    if table.identity == "f":
        found.append("REPLICA IDENTITY FULL: the log contains the whole old row of each change")
    if table.heirs:
        found.append("tables that inherit from it are separate tables here")
    if server is not None and server.version_num < TRUNCATES_SINCE:
        found.append(
            "PostgreSQL before 11 does not log TRUNCATE: it is detected in the catalog, and the"
            " table is copied again"
        )
    return tuple(found)


def _kind(
    table: TableFacts, server: ServerFacts, publication: PublicationFacts
) -> Hindrance | None:
    kinds = {
        "v": ("it is a view", "follow the tables that it reads"),
        "m": (
            "it is a materialized view: its changes are not in the log",
            "follow the tables that it reads",
        ),
        "f": (
            "it is a foreign table: its rows are on another server",
            "follow it on that server",
        ),
    }
    if table.kind in kinds:
        reason, help_ = kinds[table.kind]
        return Hindrance(reason, (help_,))
    if table.persistence == "u":
        return Hindrance(
            "it is unlogged: its changes are not in the log",
            (f"ALTER TABLE {_sql(table)} SET LOGGED",),
        )
    if table.persistence == "t":
        return Hindrance("it is a temporary table")
    if table.schema.startswith("_timescaledb_"):
        return Hindrance("it is an internal table of TimescaleDB, such as a chunk of a hypertable")
    if table.hypertable:
        return Hindrance(
            "it is a hypertable of TimescaleDB: the log shows its chunks as other tables",
            ("follow an ordinary or a partitioned table",),
        )
    return None


def _key(table: TableFacts, server: ServerFacts, publication: PublicationFacts) -> Hindrance | None:
    name = _sql(table)
    default = (f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT",)
    if table.identity == "n":
        return Hindrance("its REPLICA IDENTITY is NOTHING: the log has no old keys", default)
    if table.identity == "i" and not table.identity_key:
        return Hindrance("the index of its REPLICA IDENTITY was dropped", default)
    if not table.key:
        helps = [f"ALTER TABLE {name} ADD PRIMARY KEY (…)"]
        if table.could_be_key:
            index = quoted(table.could_be_key)
            helps = [f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {index}", *helps]
        return Hindrance("it has no primary key", tuple(helps))
    if table.key_deferrable and table.identity == "d":
        return Hindrance(
            "its primary key is deferrable: the log has old keys only under REPLICA IDENTITY FULL",
            (f"ALTER TABLE {name} REPLICA IDENTITY FULL",),
        )
    generated = [
        column.name
        for column in table.columns
        if column.name in table.key and column.generated and not column.sent
    ]
    if generated:
        stored = f"{_alter(publication)} SET (publish_generated_columns = stored)"
        return Hindrance(
            f"key column {_listed(generated)} is generated and not in the log",
            (stored,)
            if server.version_num >= GENERATED_SINCE
            else ("use a key without generated columns",),
        )
    return None


def _leaves(
    table: TableFacts, server: ServerFacts, publication: PublicationFacts
) -> Hindrance | None:
    for leaf in table.leaves:
        if leaf.kind != "r":
            return Hindrance(
                f"its partition {leaf.full_name} is a foreign table: its rows are not in the log"
            )
        if leaf.persistence != "p":
            return Hindrance(
                f"its partition {leaf.full_name} is unlogged: its changes are not in the log",
                (f"ALTER TABLE {_sql_of(leaf)} SET LOGGED",),
            )
        whole = leaf.identity == "f"
        if not (whole if table.identity == "f" else whole or leaf.key == table.identity_key):
            wanted = "FULL" if table.identity == "f" else "DEFAULT"
            if table.identity == "i":
                wanted = "USING INDEX …"
            return Hindrance(
                f"its partition {leaf.full_name} has a different REPLICA IDENTITY: its old keys are"
                " not in the log",
                (f"ALTER TABLE {_sql_of(leaf)} REPLICA IDENTITY {wanted}",),
            )
    return None


def _rights(
    table: TableFacts, server: ServerFacts, publication: PublicationFacts
) -> Hindrance | None:
    role = quoted(server.role)
    if not table.readable:
        return Hindrance(
            f"role {server.role!r} may not read it",
            (
                f"GRANT USAGE ON SCHEMA {quoted(table.schema)} TO {role}",
                f"GRANT SELECT ON {_sql(table)} TO {role}",
            ),
        )
    if table.row_security and not server.bypasses_rls:
        return Hindrance(
            f"row-level security hides some of its rows from role {server.role!r}",
            (f"ALTER ROLE {role} BYPASSRLS",),
        )
    return None


def _publishing(
    table: TableFacts, server: ServerFacts, publication: PublicationFacts
) -> Hindrance | None:
    """The parts of the table that the publication leaves out."""
    alter = _alter(publication)
    if not publication.exists:
        return Hindrance(f"publication {publication.name!r} does not exist")
    if not table.published:
        return Hindrance(
            f"publication {publication.name!r} does not contain it",
            (f"{alter} ADD TABLE {_sql(table)}",),
        )
    said = {
        "insert": publication.inserts,
        "update": publication.updates,
        "delete": publication.deletes,
        "truncate": publication.truncates or server.version_num < TRUNCATES_SINCE,
    }
    if missing := [word for word, published in said.items() if not published]:
        words = [word for word in said if word != "truncate"]
        words += ["truncate"] if server.version_num >= TRUNCATES_SINCE else []
        return Hindrance(
            f"publication {publication.name!r} does not publish {_listed(missing)}",
            (f"{alter} SET (publish = '{', '.join(words)}')",),
        )
    for is_so, what in (
        (table.row_filter, "a row filter"),
        (table.column_list, "a column list"),
    ):
        if is_so:
            again = (f"{alter} DROP TABLE {_sql(table)}", f"{alter} ADD TABLE {_sql(table)}")
            return Hindrance(
                f"publication {publication.name!r} has {what} for it: only whole tables can be"
                " followed",
                again,
            )
    return None


_CHECKS: tuple[Callable[[TableFacts, ServerFacts, PublicationFacts], Hindrance | None], ...] = (
    _kind,
    _key,
    _leaves,
    _rights,
)


def _sql(table: TableFacts) -> str:
    return quoted_table(table.schema, table.name)


def _sql_of(leaf: Leaf) -> str:
    return quoted_table(leaf.schema, leaf.name)


def _alter(publication: PublicationFacts) -> str:
    return f"ALTER PUBLICATION {quoted(publication.name)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names)


def _them(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"


def server_hindrances(
    server: ServerFacts, publication: PublicationFacts, slot: SlotFacts
) -> tuple[Hindrance, ...]:
    """All problems of the server, the publication and the slot."""
    return (
        *before_start(server, publication.name, slot.name),
        *_of_publication(server, publication),
        *_of_slot(server, slot),
    )


def before_start(server: ServerFacts, publication: str, slot: str) -> tuple[Hindrance, ...]:
    """All problems that prevent a start, before anything is created."""
    return (*_of_names(publication, slot), *_of_server(server))


def _of_names(publication: str, slot: str) -> list[Hindrance]:
    """Names that the server would cut or refuse."""
    found = []
    if not 0 < len(publication.encode()) <= MAX_NAME_BYTES:
        reason = f"publication name {publication!r}: expected 1 to {MAX_NAME_BYTES} bytes"
        found.append(Hindrance(reason, ("choose another --publication",)))
    if not _SLOT_NAME.fullmatch(slot):
        reason = f"slot name {slot!r}: expected 1 to {MAX_NAME_BYTES} of a-z, 0-9 and _"
        found.append(Hindrance(reason, ("choose another --slot",)))
    return found


def _of_server(server: ServerFacts) -> list[Hindrance]:
    found = []
    if server.version_num < OLDEST:
        found.append(Hindrance("the server is older than PostgreSQL 10"))
    if server.in_recovery:
        found.append(Hindrance("the server is a standby", ("name the primary in the DSN",)))
    if server.wal_level != "logical":
        found.append(Hindrance(f"wal_level is {server.wal_level}, not logical", WAL_LEVEL))
    names = {name.strip(' "').casefold() for name in re.split(r"[(),]", server.synchronous)}
    if names & {"*", APPLICATION_NAME}:
        found.append(
            Hindrance(
                f"synchronous_standby_names is {server.synchronous!r}: commits at the source would"
                " wait until changes are in object storage here",
                ("ALTER SYSTEM SET synchronous_standby_names = '…' to the standbys' own names",),
            )
        )
    if not server.may_replicate:
        found.append(
            Hindrance(
                f"role {server.role!r} lacks REPLICATION",
                (f"ALTER ROLE {quoted(server.role)} REPLICATION",),
            )
        )
    return found


def crashes_server(publication: PublicationFacts) -> Hindrance | None:
    """Why the server would crash while it streams the publication; None if nothing is known.

    For a publication FOR ALL TABLES via the root, the server looks for the root of each partition,
    and crashes if a partition has none: an interrupted DETACH leaves it in between.
    """
    if not publication.detaching:
        return None
    partitions = ", ".join(child for _, child in publication.detaching)
    return Hindrance(
        f"DETACH PARTITION … CONCURRENTLY of {partitions} was interrupted: the server crashes when"
        f" it streams a row of it under publication {publication.name!r}, which publishes all"
        " tables via their roots",
        tuple(
            f"ALTER TABLE {parent} DETACH PARTITION {child} FINALIZE"
            for parent, child in publication.detaching
        ),
    )


def _of_publication(server: ServerFacts, publication: PublicationFacts) -> list[Hindrance]:
    if (found := crashes_server(publication)) is not None:
        return [found]
    if publication.exists or server.may_create:
        return []
    database, role = quoted(server.database), quoted(server.role)
    return [
        Hindrance(
            f"publication {publication.name!r} does not exist, and role {server.role!r} may not"
            f" create it in database {server.database!r}",
            (f"GRANT CREATE ON DATABASE {database} TO {role}",),
        )
    ]


def _of_slot(server: ServerFacts, slot: SlotFacts) -> list[Hindrance]:
    found = []
    drop = f"SELECT pg_drop_replication_slot('{slot.name}')"
    other = ("choose another --slot",)
    if slot.exists and slot.plugin != "pgoutput":
        kind = f"uses plugin {slot.plugin!r}, not pgoutput" if slot.plugin else "is physical"
        found.append(Hindrance(f"slot {slot.name!r} {kind}", other))
    elif slot.exists and slot.database != server.database:
        found.append(
            Hindrance(
                f"slot {slot.name!r} belongs to database {slot.database!r}, not"
                f" {server.database!r}",
                other,
            )
        )
    elif slot.temporary:
        found.append(Hindrance(f"slot {slot.name!r} is temporary", other))
    elif slot.lost:
        found.append(Hindrance(f"slot {slot.name!r} is lost: {slot.lost}", (drop, *LOST_SLOT)))
    if server.slots_free < (1 if slot.exists else 2):
        found.append(
            Hindrance(
                f"{server.slots_free} replication slots are free:"
                f" {'' if slot.exists else 'one is needed for the stream, and '}one while a table"
                " is copied",
                FREE_SLOT,
            )
        )
    if server.senders_free < (1 if slot.active_pid else 2):
        found.append(
            Hindrance(
                f"{server.senders_free} WAL senders are free:"
                f" {'' if slot.active_pid else 'one is needed for the stream, and '}one while a"
                " table is copied",
                FREE_SENDER,
            )
        )
    return found
