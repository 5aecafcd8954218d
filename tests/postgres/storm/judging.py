"""The verdict on each table: equal in the copy, set aside for a real reason, or faulty.

The verdict uses no code of the product; the product's report only names the tables that it does
not follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.flight as fl

from ingester.client import Client
from tests.drivers.daemon import Daemon
from tests.drivers.wire import ARROW_AND_FLIGHT
from tests.postgres.comparing import Difference, SourceTable, compare, source_tables

_FACTS = (
    "SELECT c.relpersistence = 'p', c.relreplident::text, i.indimmediate FROM pg_class c"
    " LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary WHERE c.oid = %s"
)
_TIMES = (
    "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
    " AND atttypid IN (1082, 1114, 1184)"
)


@dataclass(slots=True)
class Verdict:
    """The result of comparing all tables."""

    equal: list[str] = field(default_factory=list)
    set_aside: dict[str, str] = field(default_factory=dict)
    """The reason, by the table's name in the copy."""
    without_reason: dict[str, str] = field(default_factory=dict)
    """Tables that are set aside or left out although nothing is wrong with them."""
    different: dict[str, Difference] = field(default_factory=dict)
    """By ``schema.name`` at the source."""
    left_out: list[str] = field(default_factory=list)
    """Tables that are rightly not published."""

    @property
    def right(self) -> bool:
        """Whether no table has a fault."""
        return not self.different and not self.without_reason

    def __str__(self) -> str:
        said = f"{len(self.equal)} equal, {len(self.set_aside)} set aside"
        said += f", {len(self.left_out)} left out, {len(self.different)} different"
        for name, reason in self.set_aside.items():
            said += f"\n  set aside: {name}: {reason}"
        for name, reason in self.without_reason.items():
            said += f"\n  FAULT, nothing is wrong with {name}: {reason or 'not followed'}"
        for difference in self.different.values():
            said += f"\n  FAULT, {difference}"
        return said


def reports(daemon: Daemon, namespace: str) -> dict[str, dict[str, Any]]:
    """Return the replicator's last report of each table, by its name at the source."""
    with Client(daemon.flight) as client:
        replications = client.status_list("replications")
    found = {}
    for replication in replications:
        if replication["namespace"] == namespace:
            found.update({table["source"]: table for table in replication["tables"]})
    return found


def judge(dsn: str, daemon: Daemon, namespace: str, publication: str) -> Verdict:
    """Compare every table of the source; no session may change it meanwhile."""
    import psycopg2

    verdict = Verdict()
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    try:
        with fl.connect(daemon.flight) as client:
            said = reports(daemon, namespace)
            published = _published(connection, publication)
            for table in source_tables(connection):
                _judge_one(verdict, connection, client, namespace, table, said, published)
    finally:
        connection.close()
    return verdict


def _judge_one(
    verdict: Verdict,
    connection: Any,
    client: fl.FlightClient,
    namespace: str,
    table: SourceTable,
    said: Mapping[str, Mapping[str, Any]],
    published: set[tuple[str, str]],
) -> None:
    name = f"{table.schema}.{table.name}"
    report = said.get(name)
    is_published = (table.schema, table.name) in published
    if report is not None and report["phase"] == "set_aside":
        reason = report["reason"]
        wrong = _what_is_wrong(connection, table)
        if reason and (wrong or not is_published):
            verdict.set_aside[name] = reason
        else:
            verdict.without_reason[name] = reason
    elif is_published:
        try:
            difference = compare(connection, client, namespace, table)
        except ARROW_AND_FLIGHT as exc:
            difference = Difference(table.here, fault=" ".join(str(exc).split())[:200])
        if difference is None:
            verdict.equal.append(name)
        else:
            phase = "it is not reported" if report is None else report["phase"]
            difference.fault += f" ({phase})"
            verdict.different[name] = difference
    elif table.kind == "p" or table.is_partition or _what_is_wrong(connection, table):
        verdict.left_out.append(name)
    else:
        verdict.without_reason[name] = "not published"


def _published(connection: Any, publication: str) -> set[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s",
            (publication,),
        )
        return set(cursor.fetchall())


def _what_is_wrong(connection: Any, table: SourceTable) -> str | None:
    """Return why a table cannot be followed, or None if it can."""
    with connection.cursor() as cursor:
        cursor.execute(_FACTS, (table.oid,))
        [(logged, identity, immediate)] = cursor.fetchall()
        if not logged:
            return "it is not logged"
        if immediate is None:
            return "it has no primary key"
        if identity == "n" or (identity == "d" and not immediate):
            return "its old rows are not logged"
        cursor.execute(_TIMES, (table.oid,))
        for (column,) in cursor.fetchall():
            quoted = '"' + column.replace('"', '""') + '"'
            cursor.execute(
                f'SELECT 1 FROM {table.schema}."{table.name}" WHERE NOT isfinite({quoted})'
                f" OR {quoted} > '9999-12-31' OR {quoted} < '0001-01-01' LIMIT 1"
            )
            if cursor.fetchall():
                return f"column {column} has a value that none here can be"
    return None
