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
from ingester.postgres.names import quoted, quoted_table
from ingester.postgres.server_errors import (
    APPLICATION_NAME,
    FREE_SENDER,
    FREE_SLOT,
    LOST_SLOT,
    WAL_LEVEL,
)

TRUNCATES_SINCE = 110_000
"""Servers before do not have TRUNCATE in the stream."""
GENERATED_SINCE = 180_000
"""Servers since then can have generated columns in the stream."""
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
"""Types whose text is the name that something has when it is written."""


class Hindrance(msgspec.Struct, frozen=True):
    """Why a table cannot be followed."""

    reason: str
    helps: tuple[str, ...] = ()
    """Commands, or sentences where no command helps."""


def hindrance(
    table: TableFacts, server: ServerFacts, publication: PublicationFacts
) -> Hindrance | None:
    """Say why a table cannot be followed as it is published; None if it can."""
    return obstacle(table, server, publication) or _publishing(table, server, publication)


def obstacle(
    table: TableFacts, server: ServerFacts, publication: PublicationFacts
) -> Hindrance | None:
    """Say why a table could not be followed, whatever the publication had of it."""
    for check in _CHECKS:
        if found := check(table, server, publication):
            return found
    return None


def breaks_writes(table: TableFacts, publication: PublicationFacts) -> Hindrance | None:
    """Say why UPDATE and DELETE of a published table fail at the source; None if they do not."""
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
        return Hindrance(f"{fail} its list of columns leaves out some of the replica identity", out)
    return None


def notes(table: TableFacts, server: ServerFacts | None = None) -> tuple[str, ...]:
    """What is left out of a table that is followed, or what it costs: one sentence each."""
    found: list[str] = []
    left_out = [column.name for column in table.columns if column.generated and not column.sent]
    if left_out:
        found.append(
            f"{_listed(left_out)}: generated, and so not in the log; left out, compute"
            f" {_them(left_out)} where the table is read"
        )
    named = [
        f"{column.name} ({_BY_NAME[column.base_oid]})"
        for column in table.sent_columns
        if column.base_oid in _BY_NAME
    ]
    if named:
        found.append(
            f"{_listed(named)}: kept as the name that it had when the row was written; a rename of"
            " what it names is not followed"
        )
    if table.identity == "f":
        found.append("REPLICA IDENTITY FULL: the log has all of the old row for each change")
    if table.heirs:
        found.append("tables that inherit from it are tables of their own here, not part of it")
    if server is not None and server.version_num < TRUNCATES_SINCE:
        found.append(
            "a TRUNCATE is not in the log before PostgreSQL 11: it is seen in the catalogue, and"
            " the table is copied anew"
        )
    return tuple(found)


def _kind(
    table: TableFacts, server: ServerFacts, publication: PublicationFacts
) -> Hindrance | None:
    kinds = {
        "v": ("it is a view: its rows are those of other tables", "follow those tables"),
        "m": (
            "it is a materialized view: the log does not have its changes",
            "follow the tables that it reads from",
        ),
        "f": (
            "it is a foreign table: its rows are in another server",
            "follow it in the server that has it",
        ),
    }
    if table.kind in kinds:
        reason, help_ = kinds[table.kind]
        return Hindrance(reason, (help_,))
    if table.persistence == "u":
        return Hindrance(
            "it is unlogged: the log does not have its changes",
            (f"ALTER TABLE {_sql(table)} SET LOGGED",),
        )
    if table.persistence == "t":
        return Hindrance("it is temporary: only its own session sees it")
    if table.schema.startswith("_timescaledb_"):
        return Hindrance("it is a part of TimescaleDB's own, such as a chunk of a hypertable")
    if table.hypertable:
        return Hindrance(
            "it is a hypertable of TimescaleDB: its rows are in chunks, which the log has as other"
            " tables",
            ("follow an ordinary or a partitioned table",),
        )
    return None


def _key(table: TableFacts, server: ServerFacts, publication: PublicationFacts) -> Hindrance | None:
    name = _sql(table)
    default = (f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT",)
    if table.identity == "n":
        return Hindrance("its REPLICA IDENTITY is NOTHING: the log has no old keys", default)
    if table.identity == "i" and not table.identity_key:
        return Hindrance("the index that its REPLICA IDENTITY names is gone", default)
    if not table.key:
        helps = [f"ALTER TABLE {name} ADD PRIMARY KEY (…)"]
        if table.could_be_key:
            index = quoted(table.could_be_key)
            helps = [f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {index}", *helps]
        return Hindrance("it has no primary key", tuple(helps))
    if table.key_deferrable and table.identity == "d":
        return Hindrance(
            "its primary key is deferrable: the log has old keys of it only under REPLICA IDENTITY"
            " FULL",
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
            f"{_listed(generated)} of its key is generated: the log does not have it",
            (stored,)
            if server.version_num >= GENERATED_SINCE
            else ("let the key be of columns that are stored as they are written",),
        )
    return None


def _leaves(
    table: TableFacts, server: ServerFacts, publication: PublicationFacts
) -> Hindrance | None:
    for leaf in table.leaves:
        if leaf.kind != "r":
            return Hindrance(
                f"its partition {leaf.full_name} is a foreign table: the log has no rows of it"
            )
        if leaf.persistence != "p":
            return Hindrance(
                f"its partition {leaf.full_name} is unlogged: the log does not have its changes",
                (f"ALTER TABLE {_sql_of(leaf)} SET LOGGED",),
            )
        whole = leaf.identity == "f"
        if not (whole if table.identity == "f" else whole or leaf.key == table.identity_key):
            wanted = "FULL" if table.identity == "f" else "DEFAULT"
            if table.identity == "i":
                wanted = "USING INDEX …"
            return Hindrance(
                f"its partition {leaf.full_name} has another REPLICA IDENTITY than it: the"
                " log does not have its old keys",
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
            f"row level security hides rows of it from role {server.role!r}",
            (f"ALTER ROLE {role} BYPASSRLS",),
        )
    return None


def _publishing(
    table: TableFacts, server: ServerFacts, publication: PublicationFacts
) -> Hindrance | None:
    """Say what the publication leaves out of the table."""
    alter = _alter(publication)
    if not publication.exists:
        return Hindrance(f"publication {publication.name!r} does not exist")
    if not table.published:
        return Hindrance(
            f"publication {publication.name!r} does not have it",
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
        (table.column_list, "a list of columns"),
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


OLDEST = 100_000
"""The oldest version that can be followed: pgoutput came with it."""


MAX_NAME_BYTES = 63
"""The server cuts longer ones without a word, and would not find them again."""
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")


def server_hindrances(
    server: ServerFacts, publication: PublicationFacts, slot: SlotFacts
) -> tuple[Hindrance, ...]:
    """Say all that stands in the way of following this server."""
    return (
        *before_start(server, publication.name, slot.name),
        *_of_publication(server, publication),
        *_of_slot(server, slot),
    )


def before_start(server: ServerFacts, publication: str, slot: str) -> tuple[Hindrance, ...]:
    """Say what stands in the way of any start, by the names of publication and slot."""
    return (*_of_names(publication, slot), *_of_server(server))


def _of_names(publication: str, slot: str) -> list[Hindrance]:
    """Say which names the server would cut or refuse."""
    found = []
    if not 0 < len(publication.encode()) <= MAX_NAME_BYTES:
        reason = f"a publication's name has 1 to {MAX_NAME_BYTES} bytes: {publication!r}"
        found.append(Hindrance(reason, ("name another --publication",)))
    if not _SLOT_NAME.fullmatch(slot):
        reason = f"a slot's name has 1 to {MAX_NAME_BYTES} of a-z, 0-9 and _: {slot!r}"
        found.append(Hindrance(reason, ("name another --slot",)))
    return found


def _of_server(server: ServerFacts) -> list[Hindrance]:
    found = []
    if server.version_num < OLDEST:
        found.append(Hindrance("the server is older than PostgreSQL 10"))
    if server.in_recovery:
        found.append(
            Hindrance("the server is a standby: its primary is followed", ("name the primary",))
        )
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
                f"role {server.role!r} may not read the log",
                (f"ALTER ROLE {quoted(server.role)} REPLICATION",),
            )
        )
    return found


def _of_publication(server: ServerFacts, publication: PublicationFacts) -> list[Hindrance]:
    if publication.exists or server.may_create:
        return []
    database, role = quoted(server.database), quoted(server.role)
    return [
        Hindrance(
            f"publication {publication.name!r} does not exist, and role {server.role!r} may not"
            f" make one in database {server.database!r}",
            (f"GRANT CREATE ON DATABASE {database} TO {role}",),
        )
    ]


def _of_slot(server: ServerFacts, slot: SlotFacts) -> list[Hindrance]:
    found = []
    drop = f"SELECT pg_drop_replication_slot('{slot.name}')"
    other = ("name another --slot",)
    if slot.exists and slot.plugin != "pgoutput":
        kind = f"of plugin {slot.plugin!r}, not pgoutput" if slot.plugin else "physical"
        found.append(Hindrance(f"slot {slot.name!r} is {kind}", other))
    elif slot.exists and slot.database != server.database:
        found.append(
            Hindrance(
                f"slot {slot.name!r} is of database {slot.database!r}, not {server.database!r}",
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
