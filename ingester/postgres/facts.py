"""Descriptions of a server, a publication and its tables, as ``catalog`` reads them.

    TableFacts ─┬▶ ColumnFacts
                └▶ Leaf: the partitions that hold its rows

The state of a table stores its ``TableFacts`` as JSON.
"""

from __future__ import annotations

import msgspec


class ServerFacts(msgspec.Struct, frozen=True):
    """A server, and the rights of the connected role."""

    version_num: int
    """As ``server_version_num``: 150004 is version 15.4."""
    system_identifier: str
    database: str
    wal_level: str
    slots_free: int
    senders_free: int
    role: str
    may_replicate: bool
    bypasses_rls: bool
    in_recovery: bool
    """The server is a standby."""
    may_create: bool = True
    """The role may create a publication in this database."""
    synchronous: str = ""
    """``synchronous_standby_names``: the standbys that commits wait for."""


class PublicationFacts(msgspec.Struct, frozen=True):
    """A publication; a missing one publishes nothing."""

    exists: bool
    all_tables: bool = False
    inserts: bool = False
    updates: bool = False
    deletes: bool = False
    truncates: bool = False
    via_root: bool = False
    """Changes of partitions come as changes of the partitioned table."""
    generated: bool = False
    """Stored generated columns are in the stream (PostgreSQL 18)."""
    schemas: bool = False
    """It contains all tables of some schemas."""
    ours: bool = False
    """Created by ``publication``, which adds tables to it."""
    owned: bool = False
    """The connected role may alter it."""
    name: str = ""
    oid: int = 0
    altered_by: int = 0
    """The transaction (32 bits) that last altered what it publishes of all its tables."""
    detaching: tuple[tuple[str, str], ...] = ()
    """Partitioned tables and their partitions whose DETACH CONCURRENTLY was not finished, as SQL,
    if the server crashes when it streams a row of those."""


class SlotFacts(msgspec.Struct, frozen=True):
    """A replication slot, existing or not."""

    name: str
    exists: bool
    plugin: str = ""
    """Empty for a physical slot."""
    database: str = ""
    active_pid: int = 0
    """The server process that reads from it; 0 for none."""
    temporary: bool = False
    restart_lsn: int = 0
    """The server keeps its log from this position."""
    confirmed_lsn: int = 0
    held_bytes: int = 0
    """Approximate bytes of log that the server keeps for the slot."""
    lost: str = ""
    """Why the server has removed log that the slot needs; empty if it has not."""


class ColumnFacts(msgspec.Struct, frozen=True):
    name: str
    number: int
    """``attnum``: unique among all columns that the table ever had."""
    type_oid: int
    type_modifier: int
    base_oid: int
    """The type below all domains; ``type_oid`` if it is no domain."""
    base_modifier: int
    type_name: str
    """The type's SQL name, for display only: it may change."""
    enum_labels: tuple[tuple[int, str], ...] = ()
    """Labels (oid, name) of all enum types within it: its own, of elements, of fields."""
    fields: tuple[tuple[int, int, int, int], ...] = ()
    """Fields (composite type, number, type, modifier) of all composite types within it."""
    not_null: bool = False
    generated: bool = False
    has_missing: bool = False
    """Rows older than its ADD COLUMN have a default that was never written to them."""
    altered_by: int = 0
    """The transaction (32 bits) that last changed the column's catalog entry."""
    sent: bool = True
    """The stream contains it: it is in the column list, and not generated or published as such."""


class Leaf(msgspec.Struct, frozen=True):
    """A partition without partitions of its own."""

    oid: int
    filenode: int
    created_by: int
    """The transaction (32 bits) that created it; 0 unless it was created as a partition."""
    attached_by: int
    """The transaction that attached it; ``created_by`` if it was created as a partition, empty."""
    schema: str = ""
    name: str = ""
    kind: str = "r"
    """``r``, or ``f``: a foreign table."""
    persistence: str = "p"
    identity: str = "d"
    key: tuple[str, ...] = ()
    """The columns of old rows in the log, unless the log has all of them."""
    changed_by: int = 0
    """As in :class:`TableFacts`."""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


class TableFacts(msgspec.Struct, frozen=True):
    """A table that is published or could be."""

    oid: int
    schema: str
    name: str
    kind: str
    """``r``: ordinary; ``p``: partitioned; ``f``: foreign; ``v``, ``m``: a view."""
    identity: str
    """REPLICA IDENTITY: ``d`` default, ``f`` full, ``i`` index, ``n`` nothing."""
    key: tuple[str, ...]
    """The columns of the REPLICA IDENTITY's index, else of the primary key; without one, under
    ``f``, those of a unique index over NOT NULL columns."""
    key_deferrable: bool
    columns: tuple[ColumnFacts, ...]
    filenode: int
    """Changes with each rewrite and TRUNCATE; 0 if ``leaves`` hold the rows."""
    leaves: tuple[Leaf, ...] = ()
    row_filter: bool = False
    column_list: bool = False
    """The publication omits columns that are not generated."""
    row_security: bool = False
    """Policies limit the rows that the role sees, unless it bypasses them."""
    published: bool = True
    published_by: tuple[int, ...] = ()
    """The OIDs of the publication's entries for the table, and the transaction that last altered
    what it publishes. If they change, changes may have been omitted in between."""
    persistence: str = "p"
    """``p``: logged; ``u``: unlogged; ``t``: temporary."""
    readable: bool = True
    """The role has SELECT on the table and USAGE on its schema."""
    owned: bool = True
    """The role may add the table to a publication."""
    identity_key: tuple[str, ...] = ()
    """The columns of old rows in the log, under ``d`` and ``i``."""
    created_by: int = 0
    """The transaction (32 bits) that created the table."""
    changed_by: int = 0
    """The transaction (32 bits) that last changed the table's catalog entry, such as a rewrite or
    a TRUNCATE."""
    could_be_key: str = ""
    """A unique index over NOT NULL columns that REPLICA IDENTITY could use."""
    heirs: int = 0
    """The number of tables that inherit from it, except partitions; each is its own table."""
    hypertable: bool = False
    """TimescaleDB keeps the rows in chunks, which the stream shows as other tables."""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sent_columns(self) -> tuple[ColumnFacts, ...]:
        """The columns in the stream, in order."""
        return tuple(column for column in self.columns if column.sent)
