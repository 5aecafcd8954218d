"""The start up to the epoch: the data directory, the log, the marks, the store, the claim.

    directory locked ─ log recovered ─ marks judged ─ store probed ─ marks written ─ epoch claimed
        ─ logs of earlier epochs in the store ended

A damaged or lost log and a wrong store are detected before an epoch is claimed, and before anything
is written to the store (``tests/daemon/test_refused_starts``). An unreachable store is waited for.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
import trio

from ingester.config.settings import ConfigError, Settings
from ingester.daemon.assembly import Audit, Carried, Found, Identified, Runtime
from ingester.observability.logs import store_away
from ingester.observability.metrics import Metrics
from ingester.recovery.marks import Left, begin, claim_body, judge, look
from ingester.store_log.fencing import fence_epochs
from persist.manifest import WriterIdentity, claim_epoch
from persist.store import ObjectStore, StoreRetry, check_store, open_store, retry_async
from wal import DirectoryLock, Disk, Log, LogSettings, NoDisk, Recovered
from wal.disk import LOCK_NAME
from wal.inspection import last_writes
from wal.recovery import survey

log = structlog.get_logger(__name__)

T = TypeVar("T")
_LOCAL = "file://"

START_RETRY = StoreRetry(first_s=0.2, cap_s=10.0)
CLOCK_OFF_S = 60.0
"""A larger difference between the clocks of this machine and the store is logged."""


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Lock the data directory, creating it if necessary.

    A start that fails removes the folders that it has created and left empty.

    Raises:
        DirectoryLocked: another process has it.
        ConfigError: it cannot be created or written.
    """
    found = _names(data_dir)
    with ExitStack() as stack:
        try:
            stack.enter_context(DirectoryLock(data_dir))
            if not os.access(data_dir, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "not writable for this user", str(data_dir))
        except OSError as exc:
            what = "it must be a folder" if isinstance(exc, FileExistsError) else exc.strerror
            at = f", at {exc.filename}" if exc.filename else ""
            raise ConfigError(
                "data_dir",
                f"{data_dir} cannot be used ({what}{at}); choose another with --data-dir",
            ) from exc
        try:
            yield
        except BaseException:
            with suppress(OSError):
                _leave_as_found(data_dir, found)
            raise


def _names(folder: Path) -> set[str] | None:
    """The names in a folder; None if it does not exist."""
    try:
        return {each.name for each in folder.iterdir()}
    except OSError:
        return None


def _leave_as_found(data_dir: Path, found: set[str] | None) -> None:
    """Remove what the start has created; OSError for a folder that is not empty. Under the lock."""
    had = found or set()
    for name in {"spill", "wal"} - had:
        if (data_dir / name).exists():
            (data_dir / name).rmdir()
    if LOCK_NAME not in had and _names(data_dir) == had | {LOCK_NAME}:
        (data_dir / LOCK_NAME).unlink()
        if found is None:
            data_dir.rmdir()


async def assemble(
    settings: Settings,
    watched: Callable[[ObjectStore], ObjectStore],
    metrics: Metrics,
    audit: Audit,
) -> Runtime:
    """Return the runtime of a new epoch.

    Args:
        watched: returns a store whose requests are counted.
        audit: receives each creation and switch of a table.

    Raises:
        LogDamaged, LogTooNew: the log cannot be read.
        LostLog, OtherStore: the log or the store is not the one that the last start used.
        StoreUnsuitable, StoreDenied: the store cannot be used.
    """
    runtime: Runtime | None = None

    def carry() -> Carried:
        return () if runtime is None else runtime.carry()

    diskless = settings.wal.disk == "off"
    if diskless:
        check_no_log(settings.data_dir)
    wal = Log(
        settings.data_dir / "wal",
        log_settings(settings),
        disk=NoDisk() if diskless else None,
        carry=carry,
    )
    written = {} if diskless else last_writes(settings.data_dir / "wal")
    recovered = await wal.recover()
    opened = partial(open_store, settings.store_url, **settings.store_options)
    store = watched(await trio.to_thread.run_sync(opened))
    found = partial(look, settings.data_dir, settings.id, store, recovered, diskless=diskless)
    left = await _reached(store, found)
    judge(left, settings.recovery)
    await _reached(store, partial(check_store, store))
    opens = left.has_objects or settings.default_ack == "store"
    writer, store_id = await _claim(store, left, recovered, opens=opens)
    ended = await _reached(store, partial(fence_epochs, store, writer))
    identity = Identified(store, store_id, writer, left.has_objects)
    since = writer.epoch if left.is_anew else left.since
    runtime = Runtime(settings, Found(identity, wal, recovered, ended, since), metrics, audit)
    tables = runtime.tables
    tables.origins.log_since = since
    if left.lost_disk:
        runtime.replication.service.note_lost()
    ages = {number: max(0.0, time.time() - at) for number, at in written.items()}
    tables.tree.replayed = {number: time.monotonic() - age for number, age in ages.items()}
    return runtime


def check_no_log(data_dir: Path) -> None:
    """Check that ``wal.disk = "off"`` leaves no log behind.

    Raises:
        ConfigError: there is one.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        found = survey(Disk(), data_dir / "wal")
        operations = sum(verdict.operations for verdict in found.verdicts)
        if operations or any(verdict.fault for verdict in found.verdicts):
            raise ConfigError(
                "wal.disk",
                f"{data_dir / 'wal'} has a log with {operations} operations, which a daemon without"
                ' one would leave behind: start it once with wal.disk = "on" and stop it cleanly;'
                f" or adopt it (ingester wal adopt {data_dir}) and remove the folder wal",
            )


def log_settings(settings: Settings) -> LogSettings:
    """Return the settings of the log."""
    wal = settings.wal
    return LogSettings(
        fsync=wal.fsync,
        fsync_interval_s=wal.fsync_interval,
        segment_bytes=wal.segment_bytes,
        segment_age_s=wal.segment_age,
    )


async def _reached(store: ObjectStore, call: Callable[[], T]) -> T:
    """Call the store in a thread, and retry while the store is unreachable."""
    in_thread = partial(trio.to_thread.run_sync, call, abandon_on_cancel=True)
    tell = store_away("store not reached, trying again", store=store.url)
    return await retry_async(in_thread, START_RETRY, tell, sleep=trio.sleep)


async def _claim(
    store: ObjectStore, left: Left, recovered: Recovered, *, opens: bool
) -> tuple[WriterIdentity, str]:
    """Claim an epoch; return the identity of this start and the id of the store."""
    incarnation = secrets.token_hex(8)
    store_id = await _reached(store, partial(begin, left, store, incarnation))
    asked = datetime.now(UTC)
    body = await _reached(
        store, partial(claim_body, store, incarnation, diskless=left.diskless, opens=opens)
    )
    _tell_clock(store, datetime.fromisoformat(str(body["at"])), asked)
    claim = partial(claim_epoch, store, left.ingester_id, recovered.highest_epoch + 1, body)
    # A claim whose answer is lost may cost an epoch, under which no process writes.
    epoch = await _reached(store, claim)
    log.info("epoch claimed", ingester_id=left.ingester_id, epoch=epoch, incarnation=incarnation)
    return WriterIdentity(left.ingester_id, incarnation, epoch), store_id


def _tell_clock(store: ObjectStore, at: datetime, asked: datetime) -> None:
    """Warn if the clocks differ: files have the store's times, tokens this machine's."""
    off_s = 0.0
    if at < asked:
        off_s = (at - asked).total_seconds()
    elif at > (answered := datetime.now(UTC)):
        off_s = (at - answered).total_seconds()
    if abs(off_s) > CLOCK_OFF_S:
        log.warning(
            "clock is off",
            store=store.url,
            store_is_ahead_s=round(off_s),
            runbook="clock-off",
        )


def tell_open_folders(settings: Settings) -> None:
    """Warn of each folder of the log and of a local store that everyone may use.

    New folders are for owner and group only. Existing ones, made by an operator or an older
    version, are used as they are: a change could lock out their readers.
    """
    for folder, mode in open_folders(_folders(settings)):
        log.warning(
            "folder is open to everybody",
            folder=str(folder),
            mode=f"{mode:04o}",
            runbook="open-folder",
        )


def open_folders(folders: Iterator[Path]) -> Iterator[tuple[Path, int]]:
    """Yield the existing folders that others may list, enter or change, with their mode."""
    for folder in folders:
        with suppress(OSError):
            found = folder.stat().st_mode
            mode = stat.S_IMODE(found)
            # A file here is refused where the folder is needed.
            if stat.S_ISDIR(found) and mode & stat.S_IRWXO:
                yield folder, mode


def _folders(settings: Settings) -> Iterator[Path]:
    yield from (settings.data_dir, settings.data_dir / "wal", settings.data_dir / "spill")
    if settings.store_url.startswith(_LOCAL):
        yield Path(settings.store_url.removeprefix(_LOCAL))
