"""Descriptions of a server, a publication and its tables, as ``catalog`` reads them.

    TableFacts ─┬▶ ColumnFacts
                └▶ Leaf: the partitions that hold its rows

The state of a table stores its ``TableFacts`` as JSON.
"""

from __future__ import annotations

import msgspec


class ServerFacts(msgspec.Struct, frozen=True):
    """A server, and what the role that is connected may do in it."""

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
    """The role may make a publication in this database."""
    synchronous: str = ""
    """``synchronous_standby_names``: whom a commit at the source waits for."""


class PublicationFacts(msgspec.Struct, frozen=True):
    """A publication; one that does not exist publishes nothing."""

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
    """It has all tables of some schemas."""
    ours: bool = False
    """``publication`` has made it, and adds tables to it."""
    owned: bool = False
    """The role that is connected may change it."""
    name: str = ""
    oid: int = 0
    altered_by: int = 0
    """The transaction (32 bits) that last changed what it publishes of all its tables."""


class SlotFacts(msgspec.Struct, frozen=True):
    """A replication slot, or the place where there is none."""

    name: str
    exists: bool
    plugin: str = ""
    """Nothing where it is physical."""
    database: str = ""
    active_pid: int = 0
    """The server's process that reads from it; 0 for none."""
    temporary: bool = False
    restart_lsn: int = 0
    """The server keeps its log from here on."""
    confirmed_lsn: int = 0
    held_bytes: int = 0
    """The log that the server keeps because of it, more or less."""
    lost: str = ""
    """Why the server no longer has all that the slot needs; nothing if it has."""


class ColumnFacts(msgspec.Struct, frozen=True):
    """A column of a table."""

    name: str
    number: int
    """``attnum``: another one for each column that the table ever had."""
    type_oid: int
    type_modifier: int
    base_oid: int
    """The type below all domains; ``type_oid`` where there is none."""
    base_modifier: int
    type_name: str
    """The type as SQL has it, for people: its name may change."""
    enum_labels: tuple[tuple[int, str], ...] = ()
    """The labels (oid, name) of all enum types within it: its own, its elements', its fields'."""
    fields: tuple[tuple[int, int, int, int], ...] = ()
    """The fields (composite type, number, type, modifier) of all composite types within it."""
    not_null: bool = False
    generated: bool = False
    has_missing: bool = False
    """Rows of before its ADD COLUMN have a value that was never written to them."""
    altered_by: int = 0
    """The transaction (32 bits) that last changed the column's entry in the catalogue."""
    sent: bool = True
    """The stream has it: it is in the list of columns, and not generated, or published so."""


class Leaf(msgspec.Struct, frozen=True):
    """A partition without partitions below."""

    oid: int
    filenode: int
    created_by: int
    """The transaction (32 bits) that made the table; 0 unless it was born as a partition."""
    attached_by: int
    """The transaction that made it a partition: ``created_by`` if it was born as one, empty."""
    schema: str = ""
    name: str = ""
    kind: str = "r"
    """``r``, or ``f``: a foreign table."""
    persistence: str = "p"
    identity: str = "d"
    key: tuple[str, ...] = ()
    """The columns that the log has of old rows, where it has not all of them."""
    changed_by: int = 0
    """As in :class:`TableFacts`."""

    @property
    def full_name(self) -> str:
        """Schema and name, for people."""
        return f"{self.schema}.{self.name}"


class TableFacts(msgspec.Struct, frozen=True):
    """A table that is published, or could be."""

    oid: int
    schema: str
    name: str
    kind: str
    """``r``: ordinary; ``p``: partitioned; ``f``: foreign; ``v``, ``m``: a view."""
    identity: str
    """REPLICA IDENTITY: ``d`` default, ``f`` full, ``i`` index, ``n`` nothing."""
    key: tuple[str, ...]
    """The columns of the REPLICA IDENTITY's index, else the primary key's; without one, under
    ``f``, those of a unique index over columns that are not null."""
    key_deferrable: bool
    columns: tuple[ColumnFacts, ...]
    filenode: int
    """Another one after each rewrite and TRUNCATE; 0 where ``leaves`` have the rows."""
    leaves: tuple[Leaf, ...] = ()
    row_filter: bool = False
    column_list: bool = False
    """The publication leaves columns out that are not generated."""
    row_security: bool = False
    """The role sees the rows only that a policy lets it see, unless it bypasses those."""
    published: bool = True
    published_by: tuple[int, ...] = ()
    """The OIDs of the publication's entries by which it has the table, and the transaction that
    last changed what it publishes. Others than before: changes may have been left out meanwhile."""
    persistence: str = "p"
    """``p``: in the log; ``u``: unlogged; ``t``: temporary."""
    readable: bool = True
    """The role has SELECT on the table and USAGE of its schema."""
    owned: bool = True
    """The role may add the table to a publication."""
    identity_key: tuple[str, ...] = ()
    """The columns that the log has of old rows, under ``d`` and ``i``."""
    created_by: int = 0
    """The transaction (32 bits) that made the table."""
    changed_by: int = 0
    """The transaction (32 bits) that last changed the table's entry in the catalogue, as a rewrite
    or a TRUNCATE does, and many others."""
    could_be_key: str = ""
    """The unique index over columns that are not null that REPLICA IDENTITY could name."""
    heirs: int = 0
    """The tables that inherit from it and are not partitions: tables of their own here."""
    hypertable: bool = False
    """TimescaleDB has the rows in chunks, and the stream has those as other tables."""

    @property
    def full_name(self) -> str:
        """Schema and name, for people."""
        return f"{self.schema}.{self.name}"

    @property
    def sent_columns(self) -> tuple[ColumnFacts, ...]:
        """The columns that the stream has, in their order."""
        return tuple(column for column in self.columns if column.sent)
