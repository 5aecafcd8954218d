"""``push``: a frame becomes the next version of a table, in every region."""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingester.pushes.driver import utc_now
from ingester.pushes.leading import controller_name
from ingester.pushes.loading import load_hooks
from ingester.pushes.push_config import PushConfig, RegionSettings, read_push_config
from ingester.pushes.push_store import PUSH_ID, HeldPush, PushExists, PushNotFound, PushStore
from ingester.pushes.record import PushPlan, PushRecord, new_push
from ingester.pushes.regions import RegionFailed, RegionUnreachable
from ingester.pushes.runner import HookFailure, HookRunner
from ingester.pushes.spark.result import Progress, PushProgress, PushRefused, PushResult
from ingester.pushes.store_region.plans import tables_of
from ingester.pushes.store_region.pushed_table import replay_start
from ingester.pushes.store_region.store import RegionStore
from ingester.spark.errors import require_pyspark
from ingester.spark.sink.data_files import TARGET_FILE_BYTES
from persist.manifest.paths import checked_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from ingester.pushes.spark.watch import Watch

PUSH_LOG = logging.getLogger("ingester.push")
"""Calls of hooks that have failed, where this process leads the push; standard error by default."""


# Its length is what its users read.
def push(
    df: DataFrame,
    namespace: str,
    table: str,
    *,
    config: PushConfig | Path | str | None = None,
    regions: Sequence[RegionSettings | str] | None = None,
    push_id: str | None = None,
    params: Mapping[str, str] | None = None,
    replay_since: str | None = None,
    primary_key: Sequence[str] = (),
    partition_by: Sequence[str] | None = None,
    sort_by: Sequence[str] = (),
    lead: bool = True,
    expected_rows: int | None = None,
    target_file_bytes: int = TARGET_FILE_BYTES,
    progress: Progress | None = None,
) -> PushResult:
    """Make the frame's rows the next version of a table, and take it live region by region.

    The rows are written once, by Spark, as the same files into the store of every region. When and
    in which order the version goes live there is up to the configuration and its hooks. Until then
    the version that was live stays so, and after a failure, too.

    A table that is not there is made: empty as version 1, and with the rows as version 2. Columns
    that the table lacks are added to it; those that the frame lacks are null in the new version.

    Args:
        config: Regions, hooks and rules: a file, or what ``read_push_config`` makes of one.
        regions: Some of the configured regions, by their names; all of them by default. Without
            ``config`` the regions themselves, which go live at once, without hooks.
        push_id: A name for the push. A push that was begun under it, by a driver that died, is
            taken up where it stands, and its rows are written only if no region has them. One that
            is over is not repeated. By default a new one each time.
        params: For the hooks.
        replay_since: Rows that are streamed into the version before, from then on, go into the new
            one, too: ``"start"`` of the push, a time (ISO 8601), or a version of the manifest.
        primary_key, partition_by, sort_by: Of a table that is not there yet. ``partition_by`` is
            ``day(time)`` by default, where there is such a column.
        lead: Whether this process leads the push. Else it is begun and its data written here, and
            an ``ingester controller`` has to be there which leads it.
        expected_rows: The push is given up if the frame has another number of rows.
        target_file_bytes: Files are cut where their rows would take more in memory.
        progress: Is told whatever happens; by default, in a terminal, standard error is.

    Raises:
        PySparkMissing: ``pip install 'ingester[spark]'``.
        PushRefused: The frame and the tables do not go together, or the id is another push's.
            Nothing was begun.
        PushConfigError, HookConfigError: The configuration cannot be; nothing was begun.
        PushFailed: The push has ended otherwise than live in every region; its ``result`` says how.
        persist.manifest.ManifestError: The table of a region cannot be read; nothing was begun.
        persist.store.StoreError: The store of the first region, where pushes are kept, stayed away.
            Push again, under the same id.
    """
    require_pyspark()
    asked = PushPlan(
        primary_key=tuple(primary_key),
        partition_by=None if partition_by is None else tuple(partition_by),
        sort_by=tuple(sort_by),
        replay_since=replay_since,
    )
    configured, names = _configured(config, regions)
    job = _Asked(
        df,
        (namespace, table),
        configured,
        names,
        push_id or f"{utc_now():%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}",
        dict(params or {}),
        asked,
    )
    return job.run(lead, expected_rows, target_file_bytes, progress or _by_default())


def _configured(
    config: PushConfig | Path | str | None, regions: Sequence[RegionSettings | str] | None
) -> tuple[PushConfig, tuple[str, ...]]:
    """The configuration, and the regions of the push by their names."""
    if config is None:
        made = [each for each in regions or () if isinstance(each, RegionSettings)]
        if not made or len(made) < len(regions or ()):
            raise PushRefused("regions: without a config they are RegionSettings, at least one")
        config = PushConfig(tuple(made))
    elif not isinstance(config, PushConfig):
        config = read_push_config(config)
    if regions is None:
        return config, config.names
    names = tuple(each if isinstance(each, str) else each.name for each in regions)
    config.order(names)
    return config, names


@dataclass(frozen=True, slots=True)
class _Asked:
    """One call of :func:`push`."""

    frame: DataFrame
    table: tuple[str, str]
    config: PushConfig
    regions: tuple[str, ...]
    push_id: str
    params: dict[str, str]
    plan: PushPlan

    def run(
        self,
        lead: bool,
        expected_rows: int | None,
        target_bytes: int,
        progress: Progress | None,
    ) -> PushResult:
        from ingester.pushes.spark.leadership import leadership_of
        from ingester.pushes.spark.run import PushRun
        from ingester.pushes.spark.shape import frame_columns
        from ingester.pushes.spark.watch import followed, led

        self._check_arguments(target_bytes)
        hooks = load_hooks(self.config.hooks)
        columns = frame_columns(self.frame)
        kept_in = self.config.regions[0]
        home = RegionStore.open(kept_in)
        try:
            home.check()
        except (RegionFailed, RegionUnreachable) as exc:
            raise PushRefused(f"region {kept_in.name}, where pushes are kept: {exc}") from exc
        store = home.store
        run = PushRun(self.frame, self.config, store, target_bytes, expected_rows, progress)
        pushes, name = PushStore(store), controller_name()
        held = self._held(pushes, name, columns, lead)
        if held.record.over:
            return run.result(held.record)
        watch: AbstractContextManager[Watch]
        if lead:
            panel = HookRunner(self.config.hooks, hooks, _log_failure)
            run.hooks = panel.statistics
            spark = self.frame.sparkSession
            watch = led(leadership_of(self.config, store, name, panel, spark), held)
        else:
            watch = followed(store, held.record)
        with watch as there:
            if progress is not None:
                first = held.record.history[-1]
                progress(PushProgress(first.at, first.region, first.what, held.record))
            return run.see_through(there)

    def _check_arguments(self, target_bytes: int) -> None:
        if not PUSH_ID.fullmatch(self.push_id):
            raise PushRefused(f"push_id {self.push_id!r} does not match {PUSH_ID.pattern}")
        try:
            for name, what in zip(self.table, ("namespace", "table"), strict=True):
                checked_name(name, what)
            if self.plan.replay_since is not None:
                replay_start(self.plan.replay_since)
        except ValueError as exc:
            raise PushRefused(str(exc)) from exc
        if target_bytes < 1:
            raise PushRefused(f"target_file_bytes {target_bytes}: at least 1")
        if not hasattr(self.frame, "_jdf"):
            raise PushRefused("a frame of Spark Connect cannot be pushed: use a classic session")

    def _held(self, pushes: PushStore, name: str, columns: pa.Schema, lead: bool) -> HeldPush:
        """The push, which this process holds from now on, unless it is over or others lead it."""
        while True:
            try:
                newest = pushes.newest(self.push_id)
            except PushNotFound:
                record = self._new(columns)
                try:
                    begun = pushes.begin(record, name, record.began_at)
                except PushExists:
                    continue  # somebody was faster
                if lead:
                    return begun
                # A second record says that it is not the one who has just begun it that leads:
                # controllers need not wait for that one to be heard of.
                return pushes.take_over(self.push_id, name, utc_now())
            self._check_same(newest.record, columns)
            if newest.record.over or not lead:
                return HeldPush(pushes, name, newest)
            return pushes.take_over(self.push_id, name, utc_now())

    def _new(self, columns: pa.Schema) -> PushRecord:
        from ingester.pushes.spark.shape import plan_of

        stores = [RegionStore.open(self.config.region(name)) for name in self.regions]
        plan = plan_of(columns, tables_of(stores, *self.table), self.plan)
        order = self.config.order(self.regions)
        return new_push(self.push_id, self.table, order, self.params, utc_now(), plan)

    def _check_same(self, record: PushRecord, columns: pa.Schema) -> None:
        from ingester.pushes.spark.shape import check_fits

        its = (record.namespace, record.table)
        if its != self.table:
            raise PushRefused(f"push {self.push_id} is one of table {its[0]}/{its[1]}")
        if record.order.regions != self.regions:
            raise PushRefused(
                f"push {self.push_id} goes through regions {', '.join(record.order.regions)}, not"
                f" {', '.join(self.regions)}"
            )
        check_fits(columns, record.plan)


def _log_failure(failure: HookFailure) -> None:
    PUSH_LOG.warning("push %s: %s", failure.push_id, failure.text())


def _by_default() -> Progress | None:
    """A line on standard error for whatever happens, in a terminal."""
    return print_progress if sys.stderr.isatty() else None


def print_progress(progress: PushProgress) -> None:
    """Say on standard error what has happened."""
    print(progress.text(), file=sys.stderr, flush=True)
