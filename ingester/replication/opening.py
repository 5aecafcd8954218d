"""Opens the room: the service of replication clients, and their reports."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from ingester.dml.operation import Transaction
from ingester.query.row_group_cache import RowGroupCache
from ingester.replication.commit import PointLookup, TransactionCommit, TransactionPath
from ingester.replication.dedup import TransactionDedup
from ingester.replication.open_transactions import OpenTransactions
from ingester.replication.reports import ReplicationReports
from ingester.replication.service import Replication
from ingester.tables.opening import Shared, TableParts
from ingester.write.opening import WriteParts


@dataclass(frozen=True, slots=True)
class ReplicationParts:
    """The parts that other rooms use."""

    service: Replication
    open_transactions: OpenTransactions
    reports: ReplicationReports


def open_replication(
    shared: Shared, tables: TableParts, write: WriteParts, row_groups: RowGroupCache
) -> ReplicationParts:
    """Return the parts of a daemon without open transactions. On the loop."""
    settings, metrics = shared.settings, shared.metrics

    def logged(transaction: Transaction) -> None:
        metrics.transaction_logged(
            sum(done.messages for done in transaction.operations),
            transaction.changes,
            sum(done.rows for done in transaction.operations),
        )
        for done in transaction.operations:
            metrics.table(*done.table).wrote(done.rows, done.nbytes, done.operations)
            metrics.rates.add(rows=done.rows, nbytes=done.nbytes, operations=done.operations)

    transactions = OpenTransactions(
        settings.replication.max_transaction_bytes, trio.current_time, settings.limits.transactions
    )
    shared.ledger.gauge("transactions", lambda: transactions.nbytes)
    commit = TransactionCommit(
        TransactionDedup(tables.catalog, tables.takeover, write.transforms.names_of),
        PointLookup(row_groups, tables.tree.upto),
        TransactionPath(
            write.operation_log,
            write.partition_room,
            write.schema_numbers,
            tables.tree.upto_in,
            write.writes.levels,
        ),
        logged,
    )
    service = Replication(
        tables.catalog, tables.known_origins, write.admission, commit, transactions
    )
    return ReplicationParts(service, transactions, ReplicationReports())
