"""Reads a server, a slot, a publication and its tables from PostgreSQL's system catalogs.

    read_server ──▶ ServerFacts     read_publication ──▶ PublicationFacts
    read_slot   ──▶ SlotFacts       read_tables      ──▶ TableFacts
    (the structs are in ``facts``, the queries of tables in ``catalog_tables``)

Catalogs are read by plain SELECTs, one per catalog: within a snapshot they show the state at that
snapshot. Functions such as ``format_type`` read the server's caches and show the present;
only names for people come from those.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ingester.postgres.catalog_tables import (
    Class,
    Classes,
    Index,
    TableColumns,
    read_columns,
    read_indexes,
)
from ingester.postgres.connection import ask, one_snapshot
from ingester.postgres.facts import (
    ColumnFacts,
    Leaf,
    PublicationFacts,
    ServerFacts,
    SlotFacts,
    TableFacts,
)

OURS = "made by ingester replicate: it adds tables, and leaves out what cannot be followed"
"""The comment that marks a publication created by ``publication``."""
DETACHES_SINCE = 140_000
"""Servers from this version have DETACH PARTITION … CONCURRENTLY."""
_CHUNKS = "_timescaledb_internal"
"""TimescaleDB's schema for the chunks of hypertables."""


def read_server(connection: Any) -> ServerFacts:
    """Read the server's facts over a plain connection."""
    [row] = ask(
        connection,
        "SELECT current_setting('server_version_num')::int,"
        " (SELECT system_identifier::text FROM pg_control_system()), current_database()::text,"
        " current_setting('wal_level'),"
        " current_setting('max_replication_slots')::int"
        " - (SELECT count(*) FROM pg_replication_slots)::int,"
        " current_setting('max_wal_senders')::int"
        " - (SELECT count(*) FROM pg_stat_replication)::int,"
        " current_user::text,"
        " rolsuper OR rolreplication OR EXISTS (SELECT FROM pg_roles r"
        " WHERE r.rolname IN ('rds_replication', 'rds_superuser')"
        " AND pg_has_role(current_user, r.oid, 'MEMBER')),"
        " rolsuper OR rolbypassrls, pg_is_in_recovery(),"
        " has_database_privilege(current_database(), 'CREATE'),"
        " current_setting('synchronous_standby_names')"
        " FROM pg_roles WHERE rolname = current_user",
    )
    return ServerFacts(*row)


def read_publication(connection: Any, name: str) -> PublicationFacts:
    """Read the publication's facts."""
    version = connection.server_version
    truncates = "pubtruncate" if version >= 110_000 else "false"
    via_root = "pubviaroot" if version >= 130_000 else "false"
    generated = "pubgencols = 's'" if version >= 180_000 else "false"
    schemas = (
        "EXISTS (SELECT FROM pg_publication_namespace WHERE pnpubid = p.oid)"
        if version >= 150_000
        else "false"
    )
    rows = ask(
        connection,
        f"SELECT puballtables, pubinsert, pubupdate, pubdelete, {truncates}, {via_root},"
        f" {generated}, {schemas},"
        " EXISTS (SELECT FROM pg_description WHERE objoid = p.oid AND objsubid = 0"
        " AND classoid = 'pg_catalog.pg_publication'::regclass AND description = %s),"
        " pg_has_role(current_user, pubowner, 'USAGE'), p.oid::bigint, p.xmin::text::bigint"
        " FROM pg_publication p WHERE pubname = %s",
        OURS,
        name,
    )
    if not rows:
        return PublicationFacts(False, name=name)
    *facts, oid, altered_by = rows[0]
    found = PublicationFacts(True, *facts)
    detaching: list[tuple[Any, ...]] = []
    if version >= DETACHES_SINCE and found.all_tables and found.via_root:
        detaching = ask(
            connection,
            "SELECT format('%I.%I', pn.nspname, p.relname), format('%I.%I', cn.nspname,"
            " c.relname) FROM pg_inherits i"
            " JOIN pg_class p ON p.oid = inhparent JOIN pg_namespace pn ON pn.oid = p.relnamespace"
            " JOIN pg_class c ON c.oid = inhrelid JOIN pg_namespace cn ON cn.oid = c.relnamespace"
            " WHERE inhdetachpending ORDER BY 1, 2",
        )
    return msgspec.structs.replace(
        found, name=name, oid=oid, altered_by=altered_by, detaching=tuple(detaching)
    )


def read_slot(connection: Any, name: str) -> SlotFacts:
    """Read the slot's facts."""
    # As JSON, since each version adds columns.
    rows = ask(
        connection,
        "SELECT to_jsonb(s), COALESCE(restart_lsn - '0/0'::pg_lsn, 0)::bigint,"
        " COALESCE(confirmed_flush_lsn - '0/0'::pg_lsn, 0)::bigint,"
        " COALESCE(greatest(0, CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
        " ELSE pg_current_wal_lsn() END - restart_lsn), 0)::bigint"
        " FROM pg_replication_slots s WHERE slot_name = %s",
        name,
    )
    if not rows:
        return SlotFacts(name, False)
    [(said, restart, confirmed, held)] = rows
    lost = said.get("invalidation_reason") or ""
    if not lost and (said.get("wal_status") == "lost" or said.get("conflicting")):
        lost = "the server has removed log that it needs"
    return SlotFacts(
        name,
        True,
        said["plugin"] or "",
        said["database"] or "",
        said["active_pid"] or 0,
        said["temporary"],
        restart,
        confirmed,
        held,
        lost.replace("_", " "),
    )


def read_tables(
    connection: Any, publication: str, oids: list[int] | None = None, *, everything: bool = False
) -> list[TableFacts]:
    """Read the publication's tables, sorted by schema and name.

    Args:
        oids: read these tables instead, published or not; dropped ones are omitted.
        everything: also read tables that could be published, foreign tables and views. Partitions
            are omitted unless the publication sends them as tables of their own.
    """
    with one_snapshot(connection):
        return _read_tables(connection, publication, oids, everything=everything)


def _read_tables(
    connection: Any, publication: str, oids: list[int] | None, *, everything: bool
) -> list[TableFacts]:
    facts = read_publication(connection, publication)
    classes = Classes(connection, publication, facts)
    wanted = (
        set(classes.published) if oids is None else {oid for oid in oids if oid in classes.by_oid}
    )
    if everything:
        wanted = wanted | classes.candidates()
    leaves = {oid: classes.leaves(oid) for oid in wanted if classes.by_oid[oid].kind == "p"}
    below = {leaf.oid for each in leaves.values() for leaf in each}
    columns = read_columns(connection, wanted | below)
    indexes = read_indexes(connection, columns)
    found = []
    for each in sorted((classes.by_oid[oid] for oid in wanted), key=lambda c: (c.schema, c.name)):
        if each.oid not in columns:
            continue  # Dropped meanwhile.
        heirs = classes.heirs.get(each.oid, [])
        table = _table(each, columns[each.oid], indexes.get(each.oid, []))
        found.append(
            msgspec.structs.replace(
                _published(table, columns[each.oid], classes, facts),
                leaves=tuple(
                    _leaf(leaf, classes, columns[leaf.oid], indexes.get(leaf.oid, []))
                    for leaf in leaves.get(each.oid, ())
                    if leaf.oid in columns
                ),
                heirs=len(heirs),
                hypertable=any(heir.schema == _CHUNKS for heir in heirs),
            )
        )
    return found


def _table(each: Class, columns: TableColumns, indexes: list[Index]) -> TableFacts:
    """The table's facts without those of the publication."""
    key, deferrable = _key(each.identity, indexes)
    could_be = [i.name for i in indexes if i.is_immediate and i.is_not_null and not i.is_primary]
    return TableFacts(
        each.oid,
        each.schema,
        each.name,
        each.kind,
        each.identity,
        key,
        deferrable,
        tuple(columns.columns),
        each.filenode,
        row_security=each.row_security,
        persistence=each.persistence,
        readable=each.readable,
        owned=each.owned,
        identity_key=_identity_key(each.identity, indexes),
        created_by=columns.created_by,
        changed_by=each.changed_by,
        could_be_key=could_be[0] if could_be else "",
    )


def _published(
    table: TableFacts, columns: TableColumns, classes: Classes, facts: PublicationFacts
) -> TableFacts:
    """The table with the publication's facts."""
    entry = classes.entry(table.oid)
    entries = classes.published.get(table.oid, ())

    def is_sent(column: ColumnFacts) -> bool:
        if entry.columns is not None:
            return column.number in entry.columns
        return not column.generated or (facts.generated and column.number in columns.stored)

    sent = tuple(msgspec.structs.replace(each, sent=is_sent(each)) for each in table.columns)
    return msgspec.structs.replace(
        table,
        columns=sent,
        row_filter=entry.row_filter,
        column_list=any(not column.sent and not column.generated for column in sent),
        published=table.oid in classes.published,
        published_by=(*entries, facts.altered_by) if entries else (),
    )


def _leaf(leaf: Class, classes: Classes, columns: TableColumns, indexes: list[Index]) -> Leaf:
    born = classes.is_born(leaf.oid, columns.created_by, columns.created_in)
    return Leaf(
        leaf.oid,
        leaf.filenode,
        columns.created_by if born else 0,
        classes.attached_by(leaf.oid),
        leaf.schema,
        leaf.name,
        leaf.kind,
        leaf.persistence,
        leaf.identity,
        _identity_key(leaf.identity, indexes),
        leaf.changed_by,
    )


def _identity_key(identity: str, indexes: list[Index]) -> tuple[str, ...]:
    """The columns of old rows in the log, unless the log has all of them."""
    for index in indexes:
        if (identity == "d" and index.is_primary and index.is_immediate) or (
            identity == "i" and index.is_identity
        ):
            return index.columns
    return ()


def _key(identity: str, indexes: list[Index]) -> tuple[tuple[str, ...], bool]:
    """The key's columns here, and whether its uniqueness is deferrable."""
    if identity == "i":
        return _identity_key(identity, indexes), False
    for index in indexes:
        if index.is_primary:
            return index.columns, not index.is_immediate
    for index in indexes:
        if identity == "f" and index.is_immediate and index.is_not_null:
            return index.columns, False
    return (), False
