"""``rewrite(partition_by=…)``: all files of a table anew, in the folders of another partition spec.

    all files ─▶ groups ─▶ one task a group: rows by their new folder ─▶ one commit:
                                                    the spec, the old files out, the new ones in

Law of this file: a version has files of one spec. So nobody else may be about to add files of the
old one: the commit is refused while a daemon has the table open, and planned anew where another
job was faster. Earlier versions keep their files and their spec.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from ingester.spark.arrow_scan import parallelism
from ingester.spark.compaction import ROUNDS, CompactionReport, Progress
from ingester.spark.compaction_plan import FileGroup, all_partitions
from ingester.spark.compaction_run import run_job
from ingester.spark.compaction_task import CompactionJob, file_table
from ingester.spark.errors import WriteRefused
from ingester.spark.sink_files import FileSink
from ingester.spark.spark_commits import commit_patiently, identity
from persist.footers import DataFile
from persist.manifest import (
    Action,
    Add,
    Manifest,
    ProposalConflict,
    Remove,
    RewriteVoid,
    Spec,
    TableState,
    UploadExpired,
    rebase,
)
from persist.parquet import Compression
from persist.partitioning import InvalidPartitionSpec, PartitionSpec
from persist.store import open_store
from persist.table import TableDefinition


class RepartitionJob(CompactionJob):
    """A group of files becomes files of the new spec. Runs on executors."""

    def run(self, group: FileGroup) -> list[Add]:
        """See :meth:`CompactionJob.run`; only part of the group is in memory at once."""
        store = open_store(self.url, **self.storage_options)
        sink = FileSink(store, self.root, self.definition, "rewrite", "spark")
        sink.compression = self.compression
        schema = self.definition.schema
        for add in group.files:
            table = file_table(store, DataFile.of(add, self.root), schema)
            for batch in table.to_batches():
                sink.add(batch)
        return sink.finish()


@dataclass(slots=True)
class Repartitioning:
    """One call."""

    spark: SparkSession
    manifest: Manifest
    storage_options: dict[str, Any]
    spec: PartitionSpec
    target_bytes: int
    compression: Compression

    def run(self, progress: Progress | None) -> CompactionReport:
        """All of it.

        Raises:
            WriteRefused: it cannot be done to this table, or not now.
        """
        began = time.monotonic()
        manifest = self.manifest
        report = CompactionReport(manifest.namespace, manifest.table, 0)
        for _ in range(ROUNDS):
            state = manifest.load()
            report.version = state.version
            definition = self._definition(state)
            groups = all_partitions(state, parallelism(self.spark), self.target_bytes)
            results = run_job(self.spark, self._job(definition), groups)
            try:
                done = self._commit(state, definition, results)
            except (ProposalConflict, RewriteVoid):
                report.conflicts += 1
                continue
            except UploadExpired as exc:
                raise WriteRefused(
                    f"nothing was changed: it took longer than manifest.orphan_grace ({exc})"
                ) from exc
            report.version, report.commits = done.version, 1
            _count(report, results)
            report.seconds = time.monotonic() - began
            if progress is not None:
                progress(report, len(groups), len(groups))
            return report
        raise WriteRefused(f"other jobs changed the table {ROUNDS} times meanwhile; try again")

    def _job(self, definition: TableDefinition) -> RepartitionJob:
        url, root = self.manifest.store.url, self.manifest.root
        options, size = self.storage_options, self.target_bytes
        return RepartitionJob(url, options, root, definition, size, self.compression)

    def _definition(self, state: TableState) -> TableDefinition:
        old = TableDefinition.of_state(state)
        if old.keyed:
            raise WriteRefused(
                "partition_by: a table with a primary key keeps its partitions, by which its keys"
                " are found"
            )
        try:
            self.spec.check_schema(old.schema)
        except InvalidPartitionSpec as exc:
            raise WriteRefused(f"partition_by: {exc}") from exc
        names = {name.casefold() for name in old.schema.names}
        for name in self.spec.names:
            if name.casefold() in names:
                raise WriteRefused(f"partition_by: the table has a column {name!r} of its own")
        check_closed(state)
        return replace(old, spec=self.spec, spec_id=old.spec_id + 1)

    def _commit(
        self,
        state: TableState,
        definition: TableDefinition,
        results: Sequence[tuple[FileGroup, list[Add]]],
    ) -> TableState:
        spec = Spec(spec_id=definition.spec_id, fields=definition.spec.texts())
        actions: list[Action] = [spec]
        for group, adds in results:
            actions += [Remove(path=add.path, reason="compaction") for add in group.files]
            actions += adds

        def untouched(now: TableState, proposed: Sequence[Action]) -> tuple[Action, ...]:
            if now.current_spec == spec and all(
                add.path in now.files for _, adds in results for add in adds
            ):
                return ()  # by this very proposal, whose answer was lost
            check_closed(now)
            if set(now.files) != set(state.files) or now.current_schema != state.current_schema:
                raise ProposalConflict("the table has other files by now", now)
            return rebase(now, proposed)

        return commit_patiently(self.manifest, state, actions, identity("spark"), untouched)


def check_closed(state: TableState) -> None:
    """Raise :class:`WriteRefused` where a daemon may have rows of the table that are in no file."""
    for name, writer in sorted(state.writers.items()):
        if writer.state == "open":
            raise WriteRefused(
                f"partition_by: daemon {name!r} (epoch {writer.epoch}) has the table open and may"
                " hold rows of it; stop it first, and if it was killed, start it, write to the"
                " table, and stop it"
            )


def _count(report: CompactionReport, results: Sequence[tuple[FileGroup, list[Add]]]) -> None:
    for group, adds in results:
        report.files_before += len(group.files)
        report.files_after += len(adds)
        report.bytes_before += group.bytes
        report.bytes_after += sum(add.bytes for add in adds)
        report.rows += group.rows
