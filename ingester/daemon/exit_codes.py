"""Exit codes of ``ingester serve``, for systemd and scripts, with one log line for each failure."""

from __future__ import annotations

from pathlib import Path

import structlog

from ingester.dml.record import DamagedRecord
from ingester.recovery.marks import DamagedMark, LostLog, OtherStore
from ingester.recovery.replay import LogOfAnotherTime, LogWithoutTable
from ingester.server.http.server import ListenError
from persist.manifest import Fenced, ManifestDamaged
from persist.store import StoreError
from wal import DirectoryLocked, LogDamaged, LogError, LogTooNew, ObjectDamaged

log = structlog.get_logger(__name__)

EXIT_DONE, EXIT_FAILED, EXIT_DAMAGED, EXIT_FENCED, EXIT_DEADLINE = 0, 1, 5, 6, 7

_DAMAGE = (LogDamaged, ObjectDamaged, LogTooNew, DamagedRecord, LogWithoutTable, LogOfAnotherTime)
_SETUP = (DirectoryLocked, StoreError, ListenError, LogError, OSError, ValueError)


def exit_code(error: BaseException, data_dir: Path | None) -> int:
    """Return the code of the first cause that has one, and log it.

    Args:
        data_dir: None if the daemon has no log there.
    """
    causes = _leaves(error)
    for kinds, code, event, runbook in (
        ((Fenced,), EXIT_FENCED, "fenced", "fenced"),
        ((ManifestDamaged,), EXIT_DAMAGED, "damaged manifest", "damaged-manifest"),
        ((LostLog,), EXIT_DAMAGED, "log is not here", "lost-log"),
        ((OtherStore,), EXIT_DAMAGED, "not the store of this data directory", "other-store"),
        ((DamagedMark,), EXIT_DAMAGED, "damaged mark", "other-store"),
        (_DAMAGE, EXIT_DAMAGED, "damaged data", "damaged-log"),
        (_SETUP, EXIT_FAILED, "cannot serve", "cannot-serve"),
    ):
        for cause in causes:
            if isinstance(cause, kinds):
                fields = {"help": _after_fencing(data_dir)} if code == EXIT_FENCED else {}
                log.error(event, error=str(cause), runbook=runbook, **fields)
                return code
    log.error("failed", exc_info=error, runbook="internal-error")
    return EXIT_FAILED


def _after_fencing(data_dir: Path | None) -> str:
    if data_dir is None:
        return "do not restart it while the other process runs, which has all that it acknowledged"
    return (
        "do not restart it while the other process runs; its unflushed rows are in its log, and"
        f" ingester wal adopt {data_dir.absolute()} commits them, even while the other one runs"
    )


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
