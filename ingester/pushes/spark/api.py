"""``push``: replaces a table atomically with the rows of a frame, in every region."""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ingester.client import arguments
from ingester.client.errors import InvalidRequest
from ingester.pushes.config import PushConfig, RegionSettings, read_push_config
from ingester.pushes.driver import utc_now
from ingester.pushes.hook_calls import HookTally
from ingester.pushes.hook_loading import load_hooks
from ingester.pushes.hook_runner import HookFailure, HookRunner
from ingester.pushes.hooks import readable
from ingester.pushes.leading import controller_name
from ingester.pushes.record import PushPlan, PushRecord, checked_params, new_push
from ingester.pushes.regions.store import RegionStore
from ingester.pushes.regions.tables import replay_text, tables_of
from ingester.pushes.spark.result import Progress, PushProgress, PushRefused, PushResult
from ingester.pushes.store import PUSH_ID, HeldPush, PushExists, PushNotFound, PushStore
from ingester.pushes.tasks import RegionFailed, RegionUnreachable
from ingester.spark.errors import require_pyspark
from persist.compaction import TARGET_FILE_BYTES
from persist.manifest.paths import checked_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from ingester.pushes.spark.feed import RecordFeed

PUSH_LOG = logging.getLogger("ingester.push")
"""Failed hook calls of a push that this process leads; standard error by default."""


# Long because its docstring is the user's reference.
def push(
    df: DataFrame,
    namespace: str,
    table: str,
    *,
    config: PushConfig | Path | str | None = None,
    regions: Sequence[RegionSettings | str] | None = None,
    push_id: str | None = None,
    params: Mapping[str, str] | None = None,
    replay_since: str | int | datetime | None = None,
    primary_key: Sequence[str] = (),
    partition_by: Sequence[str] | None = None,
    sort_by: Sequence[str] = (),
    lead: bool = True,
    defer_swap: bool = False,
    expected_rows: int | None = None,
    target_file_bytes: int = TARGET_FILE_BYTES,
    progress: Progress | None = None,
) -> PushResult:
    """Replace a table atomically, in every region, with the rows of a frame.

    Spark writes the rows once, as the same files into the store of every region. The configuration
    and its hooks decide when, and in which order, regions switch to the new generation. Until then,
    and after a failure, the previous one stays live.

    A missing table is created: empty as generation 1, and with the rows as generation 2. Columns
    that the table lacks are added to it; those that the frame lacks are null.

    Args:
        config: Regions, hooks and rules: a file, or the result of ``read_push_config``.
        regions: Some of the configured regions by name; all by default. Without ``config`` the
            regions themselves, which go live at once, without hooks.
        push_id: Identifies the push; random by default. An unfinished push with this id is resumed,
            and its rows are written only if they were not written yet. A finished one is not
            repeated. In both cases a warning says how many rows were written before: they are not
            compared, which would take another job. Other rows need another id.
        params: Parameters for hooks, as texts.
        replay_since: Since when rows streamed into the previous generation are copied into the new
            one: ``"start"`` of the push, a time with zone (ISO 8601, or a ``datetime``), or a
            manifest version.
        primary_key, partition_by, sort_by: For a new table. ``partition_by`` is ``day(time)`` by
            default, if there is such a column.
        lead: Whether this process leads the push. Otherwise it only writes the data, and an
            ``ingester controller`` has to lead.
        defer_swap: Whether regions switch only after ``ingester pushes release``. They get the data
            at once.
        expected_rows: The push is aborted if the frame has another number of rows.
        target_file_bytes: Size in memory at which a file is cut.
        progress: Called with each event; by default they are printed in a terminal.

    Raises:
        PySparkMissing: ``pip install '.[spark]'``.
        PushRefused: An argument is invalid, the frame does not fit the tables, or the id belongs to
            another push, or to one that is over with other than ``expected_rows``. Nothing was
            started.
        PushConfigError, HookConfigError: The configuration is invalid; nothing was started.
        PushFailed: The push has ended and is not live in every region; see its ``result``.
        persist.manifest.ManifestError: The table of a region cannot be read; nothing was started.
        persist.store.StoreError: The store of the first region, where pushes are stored, is
            unreachable. Push again with the same id.
    """
    require_pyspark()
    try:
        asked = PushPlan(
            primary_key=_names("primary_key", primary_key) or (),
            partition_by=_names("partition_by", partition_by),
            sort_by=_names("sort_by", sort_by) or (),
            replay_since=replay_text(replay_since),
        )
        given = checked_params({} if params is None else params)
        if push_id is None:
            push_id = f"{utc_now():%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
        if not PUSH_ID.fullmatch(arguments.text("push_id", push_id)):
            raise PushRefused(f"push_id {push_id!r} does not match {PUSH_ID.pattern}")
        for what, name in (("namespace", namespace), ("table", table)):
            checked_name(arguments.text(what, name), what)
        arguments.integer("target_file_bytes", target_file_bytes, least=1)
        arguments.integer("expected_rows", expected_rows, least=0)
    except (InvalidRequest, ValueError) as exc:
        raise PushRefused(readable(exc)) from exc
    if not hasattr(df, "_jdf"):
        kind = type(df).__name__
        raise PushRefused(
            f"df: expected a DataFrame of a classic session, not {kind}:"
            " frames of Spark Connect are not supported"
        )
    configured, names = _configured(config, regions)
    job = _PushCall(df, (namespace, table), configured, names, push_id, given, asked, defer_swap)
    return job.run(lead, expected_rows, target_file_bytes, progress or _by_default())


def _names(what: str, value: object) -> tuple[str, ...] | None:
    names = arguments.names(what, value, '["a", "b"]')
    return None if names is None else tuple(names)


def _configured(
    config: PushConfig | Path | str | None, regions: Sequence[RegionSettings | str] | None
) -> tuple[PushConfig, tuple[str, ...]]:
    """The configuration, and the names of the push's regions."""
    if config is None:
        made = [each for each in regions or () if isinstance(each, RegionSettings)]
        if not made or len(made) < len(regions or ()):
            raise PushRefused("regions: without a config, at least one RegionSettings")
        config = PushConfig(tuple(made))
    elif not isinstance(config, PushConfig):
        config = read_push_config(config)
    if regions is None:
        return config, config.names
    if isinstance(regions, str):
        raise PushRefused(f"regions={regions!r}: expected a list, such as regions=[{regions!r}]")
    names = tuple(each if isinstance(each, str) else each.name for each in regions)
    config.order(names)
    return config, names


@dataclass(frozen=True, slots=True)
class _PushCall:
    """One call of :func:`push`."""

    frame: DataFrame
    table: tuple[str, str]
    config: PushConfig
    regions: tuple[str, ...]
    push_id: str
    params: dict[str, str]
    plan: PushPlan
    deferred: bool

    def run(
        self,
        lead: bool,
        expected_rows: int | None,
        target_bytes: int,
        progress: Progress | None,
    ) -> PushResult:
        from ingester.pushes.spark.feed import followed, leadership_of, led
        from ingester.pushes.spark.frames import frame_columns
        from ingester.pushes.spark.run import PushRun

        tally = HookTally()
        hooks = load_hooks(self.config.hooks, tally)
        columns = frame_columns(self.frame)
        first = self.config.regions[0]
        home = RegionStore.open(first)
        try:
            home.check()
        except (RegionFailed, RegionUnreachable) as exc:
            raise PushRefused(f"region {first.name}, where pushes are stored: {exc}") from exc
        store = home.store
        run = PushRun(self.frame, self.config, store, target_bytes, expected_rows, progress)
        pushes, name = PushStore(store), controller_name()
        held = self._held(pushes, name, columns, lead)
        if held.record.over:
            result = run.result(held.record)
            self._check_repeat(result, expected_rows)
            return result
        feed: AbstractContextManager[RecordFeed]
        if lead:
            panel = HookRunner(self.config.hooks, hooks, _log_failure, tally)
            run.hooks = panel.statistics
            spark = self.frame.sparkSession
            feed = led(leadership_of(self.config, store, name, panel, spark), held)
        else:
            feed = followed(store, held.record)
        with feed as records:
            if progress is not None:
                event = held.record.history[-1]
                progress(PushProgress(event.at, event.region, event.what, held.record))
            return run.see_through(records)

    def _check_repeat(self, result: PushResult, expected_rows: int | None) -> None:
        """Say that the push of this id is over, and that this frame was not compared with it.

        Raises:
            PushRefused: it has another number of rows than this call expects.
        """
        over = f"push {self.push_id} is over, with {result.rows:,} rows"
        if expected_rows is not None and expected_rows != result.rows:
            raise PushRefused(
                f"{over}, not the expected {expected_rows:,}: push other rows with another push_id"
            )
        PUSH_LOG.warning(
            "%s: the rows of this call were neither written nor compared with them; push other"
            " rows with another push_id",
            over,
        )

    def _held(self, pushes: PushStore, name: str, columns: pa.Schema, lead: bool) -> HeldPush:
        """Hold the push, new or existing; only read it if it is over or led elsewhere."""
        while True:
            try:
                newest = pushes.newest(self.push_id)
            except PushNotFound:
                record = self._new(columns)
                try:
                    begun = pushes.begin(record, name, record.began_at)
                except PushExists:
                    continue  # another process was faster
                if lead:
                    return begun
                # A second record tells controllers not to wait for a heartbeat of the process that
                # has started the push.
                return pushes.take_over(self.push_id, name, utc_now())
            self._check_same(newest.record, columns)
            if newest.record.over or not lead:
                return HeldPush(pushes, name, newest)
            return pushes.take_over(self.push_id, name, utc_now())

    def _new(self, columns: pa.Schema) -> PushRecord:
        from ingester.pushes.spark.frames import plan_of

        stores = [RegionStore.open(self.config.region(name)) for name in self.regions]
        plan = plan_of(columns, tables_of(stores, *self.table), self.plan)
        order = self.config.order(self.regions)
        return new_push(
            self.push_id,
            self.table,
            order,
            self.params,
            utc_now(),
            plan,
            deferred=bool(self.deferred),
        )

    def _check_same(self, record: PushRecord, columns: pa.Schema) -> None:
        from ingester.pushes.spark.frames import check_fits

        its = (record.namespace, record.table)
        if its != self.table:
            raise PushRefused(f"push {self.push_id} is of table {its[0]}/{its[1]}")
        if record.order.regions != self.regions:
            raise PushRefused(
                f"push {self.push_id} has regions {', '.join(record.order.regions)}, not"
                f" {', '.join(self.regions)}"
            )
        check_fits(columns, record.plan)


def _log_failure(failure: HookFailure) -> None:
    PUSH_LOG.warning("push %s: %s", failure.push_id, failure.text())


def _by_default() -> Progress | None:
    """In a terminal, print each event."""
    return print_progress if sys.stderr.isatty() else None


def print_progress(progress: PushProgress) -> None:
    """Print an event on standard error."""
    print(progress.text(), file=sys.stderr, flush=True)
