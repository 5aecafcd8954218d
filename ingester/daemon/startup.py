"""The start up to the epoch: the data directory, the log, the marks, the store, the claim.

    directory locked ─ log recovered ─ marks judged ─ store probed ─ marks written ─ epoch claimed

Law of this file: a damaged log, a lost one and a wrong store cost no epoch, and nothing is written
to the store before that is known. A store that is away is waited for.
"""

from __future__ import annotations

import errno
import os
import secrets
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
from ingester.daemon.assembly import Carried, Runtime, log_settings
from ingester.observability.logs import store_away
from ingester.recovery.marks import Left, begin, claim_body, judge, look
from persist.manifest import WriterIdentity, claim_epoch
from persist.store import ObjectStore, StoreRetry, check_store, open_store, retry_async
from wal import DirectoryLock, Log, Recovered
from wal.inspection import last_writes
from wal.lock import LOCK_NAME

log = structlog.get_logger(__name__)

T = TypeVar("T")

START_RETRY = StoreRetry(first_s=0.2, cap_s=10.0)
CLOCK_OFF_S = 60.0
"""Beyond this the clocks of this machine and of the store are told to be apart."""


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Hold the data directory, which is made where it is missing.

    A start that ends with an error leaves no folder that it has made and put nothing into.

    Raises:
        DirectoryLocked: Another process has it.
        ConfigError: It cannot be made, or not be written.
    """
    found = _names(data_dir)
    with ExitStack() as stack:
        try:
            stack.enter_context(DirectoryLock(data_dir))
            if not os.access(data_dir, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "not writable for this user", str(data_dir))
        except OSError as exc:
            what = "it has to be a folder" if isinstance(exc, FileExistsError) else exc.strerror
            at = f", at {exc.filename}" if exc.filename else ""
            raise ConfigError(
                "data_dir", f"{data_dir} cannot be used ({what}{at}); name another with --data-dir"
            ) from exc
        try:
            yield
        except BaseException:
            with suppress(OSError):
                _leave_as_found(data_dir, found)
            raise


def _names(folder: Path) -> set[str] | None:
    """What is in a folder; None where there is none."""
    try:
        return {each.name for each in folder.iterdir()}
    except OSError:
        return None


def _leave_as_found(data_dir: Path, found: set[str] | None) -> None:
    """Remove what a start has made; OSError for what something was put into. Under the lock."""
    had = found or set()
    for name in {"spill", "wal"} - had:
        if (data_dir / name).exists():
            (data_dir / name).rmdir()
    if LOCK_NAME not in had and _names(data_dir) == had | {LOCK_NAME}:
        (data_dir / LOCK_NAME).unlink()
        if found is None:
            data_dir.rmdir()


async def assemble(settings: Settings, watched: Callable[[ObjectStore], ObjectStore]) -> Runtime:
    """Make the runtime of a new epoch. The log is checked first: a damaged one costs no epoch.

    Args:
        watched: Gives a store whose requests are counted.

    Raises:
        LogDamaged, LogTooNew: The log does not check out.
        LostLog, OtherStore: The log or the store is not the one that was left.
        StoreUnsuitable, StoreDenied: The store cannot be used.
    """
    runtime: Runtime | None = None

    def carry() -> Carried:
        return () if runtime is None else runtime.carried_records()

    wal = Log(settings.data_dir / "wal", log_settings(settings), carry=carry)
    written = last_writes(settings.data_dir / "wal")
    recovered = await wal.recover()
    opened = partial(open_store, settings.store_url, **settings.store_options)
    store = watched(await trio.to_thread.run_sync(opened))
    found = partial(look, settings.data_dir, settings.id, store, recovered)
    left = await _reached(store, found)
    judge(left, settings.recovery)
    # It answers, and can do what is needed.
    await _reached(store, partial(check_store, store))
    writer, store_id = await _claim(store, left, recovered)
    runtime = Runtime(settings, store, writer, wal, recovered)
    runtime.store_id = store_id
    runtime.origins.log_since = writer.epoch if left.is_anew else left.since
    ages = {number: max(0.0, time.time() - at) for number, at in written.items()}
    runtime.tree.replayed = {number: time.monotonic() - age for number, age in ages.items()}
    return runtime


async def _reached(store: ObjectStore, call: Callable[[], T]) -> T:
    """Make a call of the store in a thread, waiting while the store is away."""
    in_thread = partial(trio.to_thread.run_sync, call, abandon_on_cancel=True)
    tell = store_away("store not reached, trying again", store=store.url)
    return await retry_async(in_thread, START_RETRY, tell, sleep=trio.sleep)


async def _claim(
    store: ObjectStore, left: Left, recovered: Recovered
) -> tuple[WriterIdentity, str]:
    """The identity of this start, and the id of the store that it is claimed in."""
    incarnation = secrets.token_hex(8)
    store_id = await _reached(store, partial(begin, left, store, incarnation))
    asked = datetime.now(UTC)
    body = await _reached(store, partial(claim_body, store, incarnation))
    _tell_clock(store, datetime.fromisoformat(str(body["at"])), asked)
    claim = partial(claim_epoch, store, left.ingester_id, recovered.highest_epoch + 1, body)
    # A claim whose answer was lost costs an epoch, if it is not recognised: nobody writes under it.
    epoch = await _reached(store, claim)
    log.info("epoch claimed", ingester_id=left.ingester_id, epoch=epoch, incarnation=incarnation)
    return WriterIdentity(left.ingester_id, incarnation, epoch), store_id


def _tell_clock(store: ObjectStore, at: datetime, asked: datetime) -> None:
    """Warn of a clock that is off: times of files are the store's, those of tokens this one's."""
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
