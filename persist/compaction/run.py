"""Rounds, waves and commits of a rewrite.

    plan from the manifest ─▶ waves of groups ─▶ one task per group ─▶ one commit per wave
              ▲                                                        │ a file is gone:
              └────────────── groups that were dropped ◀───────────────┘ its group is dropped

A commit removes files and adds files with the same rows, for a whole group or not at all. If one of
a group's files has been removed meanwhile, the group is planned again. A process that dies leaves
garbage and all committed waves (``tests/persist/compaction/test_kill.py``). Nothing is deleted:
replaced files stay for as long as a kept version lists them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from persist.compaction.plan import FileGroup, FileSelection, Planner, waves
from persist.compaction.report import CompactionReport, Progress
from persist.compaction.task import RewriteTask, Rewritten, actions_of, still_valid
from persist.manifest import (
    Action,
    Manifest,
    ProposalConflict,
    RewriteVoid,
    TableState,
    UploadExpired,
    commit_patiently,
    one_time_writer,
)
from persist.parquet.encode import ZSTD, Compression
from persist.table import TableDefinition

WAVE_BYTES = 4 << 30
"""Maximum bytes of one commit. Limits the work that a dying process loses, and the time until new
files are committed: clean-up deletes files that stay uncommitted for too long."""
ROUNDS = 10
"""How often dropped groups are planned again after conflicts."""

Runner = Callable[[RewriteTask, Sequence[FileGroup]], list[Rewritten]]
"""Runs the task for each group. A result may have fewer files than its group."""
Selection = Callable[[TableDefinition], FileSelection]
"""Returns which files are rewritten, or raises ``ValueError`` for an invalid filter."""


class RewriteRefused(ValueError):
    """The table cannot be rewritten in this way."""


@dataclass(slots=True)
class Rewriting:
    """One call of a rewrite.

    Attributes:
        writer: Named in the manifest as the writer of versions and files.
    """

    manifest: Manifest
    runner: Runner
    target_bytes: int
    wanted: Selection = lambda definition: lambda add: True
    writer: str = "compaction"
    sort_by: tuple[str, ...] | None = None
    partition_by: tuple[str, ...] | None = None
    compression: Compression = ZSTD
    rounds: int = ROUNDS
    wave_bytes: int | None = None
    progress: Progress | None = None
    _done: int = 0
    _planned: int = 0
    _refused: int = 0
    _began: float = field(default_factory=time.monotonic)

    def run(self, planners: Sequence[Planner]) -> CompactionReport:
        """Rewrite the groups of each planner in turn, and report.

        Raises:
            RewriteRefused: ``sort_by`` names an unknown column, or the table is keyed.
            ValueError: The selection is invalid, or ``partition_by`` does not fit the table.
            persist.manifest.TableNotFound: The table does not exist.
            persist.store.StoreError: The store cannot be read or written; committed waves stay.
        """
        state = self._laid_out(self.manifest.load())
        report = CompactionReport(self.manifest.namespace, self.manifest.table, state.version)
        lost = 0
        for planner in planners:
            state = self._by_plan(state, planner, report)
            # Refused groups will be refused by the next plan too, so count them once.
            lost += report.left - self._refused
        report.left = lost + self._refused
        report.seconds = time.monotonic() - self._began
        return report

    def _by_plan(self, state: TableState, planner: Planner, report: CompactionReport) -> TableState:
        for _ in range(self.rounds):
            wanted = self.wanted(TableDefinition.of_state(state))
            groups = planner(state, self.target_bytes, wanted)
            self._planned += len(groups)
            left = self._refused = 0
            for wave in waves(groups, self.wave_bytes or WAVE_BYTES):
                state, lost = self._wave(state, wave, report)
                left += lost
                report.version = state.version
                report.seconds = time.monotonic() - self._began
                if self.progress is not None:
                    self.progress(report, self._done, self._planned)
            report.left = left
            if left == self._refused:  # no conflicts
                break
            state = self.manifest.refresh(state)
        return state

    def _laid_out(self, state: TableState) -> TableState:
        """The state with the requested partition spec committed. Arguments are checked first."""
        while True:
            definition = TableDefinition.of_state(state)
            self.wanted(definition)
            _sorted_by(definition, self.sort_by)
            if self.partition_by is None:
                break
            if definition.keyed:
                raise RewriteRefused(
                    "partition_by: the partitions of a table with a primary key cannot change, as a"
                    " key must stay in its partition"
                )
            wanted = definition.with_spec(self.partition_by)
            if wanted.spec == definition.spec:
                break
            self.wanted(wanted)
            # With the schema, so that the commit conflicts if a column was added meanwhile.
            assert state.current_schema is not None
            actions: list[Action] = [state.current_schema, wanted.spec_action()]
            try:
                return commit_patiently(self.manifest, state, actions, one_time_writer(self.writer))
            except ProposalConflict:  # another writer changed spec or schema
                state = self.manifest.refresh(state)
        return state

    def _wave(
        self, state: TableState, groups: list[FileGroup], report: CompactionReport
    ) -> tuple[TableState, int]:
        """Run the groups and commit them. Returns the number of dropped groups."""
        definition = _sorted_by(TableDefinition.of_state(state), self.sort_by)
        task = RewriteTask(
            self.manifest.root, definition, self.target_bytes, self.writer, self.compression
        )
        found = self.runner(task, groups)
        self._planned += len(found) - len(groups)  # pieces of groups
        results = [one for one in found if one.refused is None]
        lost = len(found) - len(results)
        self._refused += lost
        report.refused = next((one.refused for one in found if one.refused), report.refused)
        while results:
            try:
                state = commit_patiently(
                    self.manifest, state, actions_of(results), one_time_writer(self.writer)
                )
            except (RewriteVoid, UploadExpired) as exc:
                kept = still_valid(results, exc)
            else:
                self._count(results, report)
                break
            lost += len(results) - len(kept)
            report.conflicts += len(results) - len(kept)
            results = kept
            state = self.manifest.refresh(state)
        return state, lost

    def _count(self, results: Sequence[Rewritten], report: CompactionReport) -> None:
        self._done += len(results)
        report.commits += 1
        for group, adds, _ in results:
            report.files_before += len(group.files)
            report.files_after += len(adds)
            report.bytes_before += group.bytes
            report.bytes_after += sum(add.bytes for add in adds)
            report.rows += group.rows


def _sorted_by(definition: TableDefinition, names: tuple[str, ...] | None) -> TableDefinition:
    if names is None:
        return definition
    if definition.keyed:
        raise RewriteRefused("sort_by: files of a table with a primary key are in key order")
    for name in names:
        if name not in definition.schema.names:
            raise RewriteRefused(
                f"sort_by: no column {name!r}; the table has {', '.join(definition.schema.names)}"
            )
    return replace(definition, sort_by=names)
