"""What a server, a publication and its tables are, read from PostgreSQL's catalogues.

    read_server ──▶ ServerFacts     read_publication ──▶ PublicationFacts
    read_tables ──▶ TableFacts      (the structs are in ``facts``)

Law of this file: the catalogues are read by plain SELECTs, one for each catalogue, whatever the
number of tables: inside a transaction with a snapshot they say what was then. A function that
looks into the server's caches would say what is now; only names for people come from those.
"""

from __future__ import annotations

from typing import Any

from ingester.postgres.facts import (
    ColumnFacts,
    Leaf,
    PublicationFacts,
    ServerFacts,
    TableFacts,
)

__all__ = [
    "ColumnFacts",
    "Leaf",
    "PublicationFacts",
    "ServerFacts",
    "TableFacts",
    "read_publication",
    "read_server",
    "read_tables",
]

OURS = "made by ingester replicate: it adds tables, and leaves out what cannot be followed"
"""The comment of a publication that ``publication`` has made."""
FIRST_NORMAL_OID = 16384
"""Objects below are the system's own."""


def read_server(connection: Any) -> ServerFacts:
    """Read what the server is; the connection is a plain one.

    Raises:
        psycopg2.OperationalError: the connection is lost.
    """
    [row] = _rows(
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
        " has_database_privilege(current_database(), 'CREATE')"
        " FROM pg_roles WHERE rolname = current_user",
    )
    return ServerFacts(*row)


def read_publication(connection: Any, name: str) -> PublicationFacts:
    """Read what the publication is.

    Raises:
        psycopg2.OperationalError: the connection is lost.
    """
    version = connection.server_version
    truncates = "pubtruncate" if version >= 110_000 else "false"
    via_root = "pubviaroot" if version >= 130_000 else "false"
    generated = "pubgencols = 's'" if version >= 180_000 else "false"
    schemas = (
        "EXISTS (SELECT FROM pg_publication_namespace WHERE pnpubid = p.oid)"
        if version >= 150_000
        else "false"
    )
    rows = _rows(
        connection,
        f"SELECT puballtables, pubinsert, pubupdate, pubdelete, {truncates}, {via_root},"
        f" {generated}, {schemas},"
        " EXISTS (SELECT FROM pg_description WHERE objoid = p.oid AND objsubid = 0"
        " AND classoid = 'pg_catalog.pg_publication'::regclass AND description = %s),"
        " pg_has_role(current_user, pubowner, 'USAGE')"
        " FROM pg_publication p WHERE pubname = %s",
        (OURS, name),
    )
    return PublicationFacts(True, *rows[0]) if rows else PublicationFacts(False)


def read_tables(
    connection: Any, publication: str, oids: list[int] | None = None, *, everything: bool = False
) -> list[TableFacts]:
    """Read the publication's tables, by schema and name.

    Args:
        oids: of the tables that are read, published or not; those that are gone are left out.
        everything: read the tables too that could be published, and foreign tables and views.
            Partitions are left out, unless the publication sends them as tables of their own.

    Raises:
        psycopg2.OperationalError: the connection is lost.
    """
    raise NotImplementedError


def _rows(connection: Any, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows
