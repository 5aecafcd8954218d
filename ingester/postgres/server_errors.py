"""Classification of PostgreSQL's errors: retry, or fail with what helps.

    psycopg2.Error ──▶ failure_of ─┬▶ psycopg2.OperationalError   transient: retry
                                   └▶ SourceFailed                 with commands that help

Errors are classified by SQLSTATE. libpq does not pass one on for a failed connection, so those are
recognized by the server's English message; an unknown message counts as transient.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psycopg2
APPLICATION_NAME = "ingester replicate"
"""The default ``application_name`` of our sessions."""
WAL_LEVEL = ("ALTER SYSTEM SET wal_level = logical", "restart the server")
FREE_SLOT = (
    "SELECT slot_name, active, restart_lsn FROM pg_replication_slots",
    "drop unused ones: SELECT pg_drop_replication_slot('NAME')",
    "or raise max_replication_slots and restart the server",
)
FREE_SENDER = ("raise max_wal_senders and restart the server",)
LOST_SLOT = (
    "start once with --resync-all: it creates a new slot and copies all tables again",
    "raise max_slot_wal_keep_size above the log that is written while no replicator runs",
)
RESYNC = ("start once with --resync-all: it creates a new slot and copies all tables again",)
WRITABLE = (
    "name the primary in the DSN",
    "or make the role's transactions writable: ALTER ROLE … RESET default_transaction_read_only",
)
DIRECT = ("name the server itself in the DSN, not the pooler",)
NOT_UTF8 = ("rename it: names in a SQL_ASCII database are not checked",)
ENCODED = ("percent-encode special characters of user and password in the URI",)
_PASSING_CLASSES = ("08", "25", "40", "53", "57", "58", "XX")
"""Connection, transaction, resources, administrator, system, and internal errors."""
_PASSING = frozenset(("55P03", "55006", "0B000"))
_GONE = frozenset(("42P01", "42703", "3F000"))
"""A table, column or schema was dropped since it was read; the next look finds out."""
_TOLD: tuple[tuple[str, str, bool, tuple[str, ...]], ...] = (
    ("55000", r"wal_level", True, WAL_LEVEL),
    (
        "55000",
        r"can no longer|invalidat|obsolete|wal removed|max_slot_wal_keep_size",
        True,
        LOST_SLOT,
    ),
    ("55000", r"not created in this database", True, ("choose another --slot",)),
    ("55000", r"recovery|standby", True, ("name the primary in the DSN",)),
    ("0A000", r"recovery|standby", True, ("name the primary in the DSN",)),
    ("25006", r"", True, WRITABLE),
    ("53400", r"", True, FREE_SLOT),
    ("53300", r"max_wal_senders", False, FREE_SENDER),
    ("55006", r"", False, ("end the other reader of the slot, or choose another --slot",)),
    ("58P01", r"requested WAL segment", True, LOST_SLOT),
    ("42710", r"publication|relation", False, ()),
    ("42704", r"slot", True, RESYNC),
    ("42704", r"publication", True, RESYNC),
    (
        "42501",
        r"row-level security",
        True,
        ("ALTER ROLE … BYPASSRLS, or let the tables' owner replicate",),
    ),
    ("42501", r"replication|WAL sender", True, ("ALTER ROLE … REPLICATION",)),
    ("42501", r"", True, ("GRANT SELECT ON … TO …",)),
)
"""SQLSTATE, message pattern, whether it is permanent, and what helps."""
_CONNECTING: tuple[tuple[str, str, bool, tuple[str, ...]], ...] = (
    (
        "28P01",
        r"password authentication failed|authentication failed|no password supplied",
        True,
        ("put the password into ~/.pgpass or PGPASSWORD",),
    ),
    (
        "28000",
        r"pg_hba\.conf",
        True,
        ("add a line to pg_hba.conf: host DATABASE ROLE ADDRESS scram-sha-256",),
    ),
    ("28000", r"role .* does not exist", True, ("CREATE ROLE … LOGIN REPLICATION",)),
    ("28000", r"not permitted to log in", True, ("ALTER ROLE … LOGIN",)),
    ("3D000", r"database .* does not exist", True, ()),
    (
        "42501",
        r"replication role|REPLICATION attribute|start WAL sender|initiate streaming",
        True,
        ("ALTER ROLE … REPLICATION",),
    ),
    ("42501", r"permission denied for database", True, ("GRANT CONNECT ON DATABASE … TO …",)),
    (
        "08P01",
        r"unsupported startup parameter|bouncer|replication connections? (?:is|are)? ?not",
        True,
        DIRECT,
    ),
    ("53300", r"max_wal_senders", False, FREE_SENDER),
    (
        "08001",
        r"invalid \S+ value|invalid port number|does not support SSL|certificate verify failed",
        True,
        (),
    ),
)


class SourceFailed(Exception):
    """The source refuses something.

    ``permanent`` means that no retry helps. ``sqlstate`` is PostgreSQL's code. ``helps`` are SQL or
    shell commands, or sentences.
    """

    def __init__(
        self,
        message: str,
        sqlstate: str | None = None,
        permanent: bool = True,
        helps: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.permanent = permanent
        self.helps = helps

    @property
    def with_help(self) -> str:
        """The message, followed by what helps."""
        return f"{self}; what helps: {'; '.join(self.helps)}" if self.helps else str(self)


def failure_of(error: psycopg2.Error, secrets: tuple[str, ...] = ()) -> Exception:
    """The exception to raise: ``SourceFailed`` or ``psycopg2.OperationalError``.

    Args:
        secrets: texts to mask in the message.
    """
    import psycopg2

    text = _one_line(error, secrets)
    code = error.pgcode
    if code is None:
        passing = (
            isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError))
            or type(error) is psycopg2.DatabaseError
        )  # The stream ended: the server is restarting.
        for sqlstate, words, permanent, helps in _CONNECTING if passing else ():
            if re.search(words, text, re.IGNORECASE):
                return SourceFailed(f"PostgreSQL: {text}", sqlstate, permanent, helps)
        if passing:
            return _passing(text)
        return SourceFailed(f"PostgreSQL: {text}")
    for sqlstate, words, permanent, helps in _TOLD:
        if code == sqlstate and re.search(words, text, re.IGNORECASE):
            return SourceFailed(f"PostgreSQL: {text}", code, permanent, helps)
    if code[:2] in _PASSING_CLASSES or code in _PASSING:
        return _passing(text)
    return SourceFailed(f"PostgreSQL: {text}", code, code not in _GONE)


def _one_line(error: psycopg2.Error, secrets: tuple[str, ...]) -> str:
    text = " ".join(str(error).split())
    for secret in secrets:
        text = text.replace(secret, "…")
    return text


def _passing(text: str) -> Exception:
    import psycopg2

    error: Exception = psycopg2.OperationalError(text)
    return error
