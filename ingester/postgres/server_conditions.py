"""Whether a server can be followed by this role and slot, and what would help where it cannot.

    ServerFacts, PublicationFacts, SlotFacts ──▶ hindrances ──▶ Hindrance, …

Law of this file: pure. All that stands in the way is told at once, not one after the other.
"""

from __future__ import annotations

import re

from ingester.postgres.conditions import Hindrance
from ingester.postgres.facts import PublicationFacts, ServerFacts, SlotFacts
from ingester.postgres.server_errors import (
    APPLICATION_NAME,
    FREE_SENDER,
    FREE_SLOT,
    LOST_SLOT,
    WAL_LEVEL,
)
from ingester.postgres.sql_names import quoted

OLDEST = 100_000
"""The oldest version that can be followed: pgoutput came with it."""


MAX_NAME_BYTES = 63
"""The server cuts longer ones without a word, and would not find them again."""
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")


def hindrances(
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
