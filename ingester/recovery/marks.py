"""Checks before a start: is the log here, and does it belong to this store?

    data directory  ──▶ its mark: store, last epoch, last start
    log             ──▶ whether it has segments, and the newest epoch in them     ──▶ ``judge``
    store           ──▶ its own mark, the last claim of this id, a recorded clean stop
                                                                                   │
                              the start continues ◀── in order, or accepted ───────┴▶ refused

Nothing is written before these checks pass (``tests/recovery/test_marks.py``). They detect a *lost
log*: the last epoch of this id did not stop cleanly, and its log is not in this folder (a volume
that is not mounted, a wrong ``data_dir``, another daemon of this id). And *another store*: not this
folder's, an emptied one (a mount point without a mount), or one from before the folder's last start
(a restored backup). Folders and stores of versions without marks get them silently.

A log that is not here was not lost if its daemon kept none on disk, and may be missing if there
are log objects of its last epoch: these have what it acknowledged at level ``store``, and they say
what else there was (`ingester.store_log`). A daemon without a log on disk neither reads nor writes
a mark in its data directory.

    <data-dir>/ingester.json   written atomically by each start, before its claim and again once
                               the log has a segment of its epoch, and by a clean stop

The name of a start (``starting``) is in the mark before it is in the store's claim, and its epoch
is there before a row is taken under it. So a start that died early is distinguished from one whose
log has rows; until then the mark keeps describing the log as before.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from ingester.config.settings import RecoverySettings
from persist.manifest import EpochClaim, WriterIdentity, last_claim, read_claim, tell_stop
from persist.store import ObjectStore, StoreMark, ensure_mark
from persist.store import read_mark as read_store_mark
from persist.store.local import sync_folder, write_synced
from wal import Recovered
from wal.objects import epoch_folder, object_folder

log = structlog.get_logger(__name__)

NAME = "ingester.json"
FORMAT = 1
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class DamagedMark(ValueError):
    """``ingester.json`` is damaged, or of a newer version."""


class Starting(msgspec.Struct, frozen=True, kw_only=True):
    """A start without a log segment yet, and perhaps without an epoch."""

    incarnation: str
    store: str
    store_url: str
    anew: bool = False
    """Whether the log of earlier epochs is missing: lost or elsewhere."""


class DataMark(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the mark."""

    format: int = FORMAT
    ingester_id: str
    store: str
    """The ``id`` in the store's mark."""
    store_url: str
    """The store's location without secrets, for people and for ``wal adopt``."""
    epoch: int
    """The last epoch whose log began here; 0 before the first."""
    incarnation: str
    """The start of ``epoch``."""
    stopped: bool
    """Whether ``epoch`` stopped with all of its rows in files."""
    since: int = 0
    """The first epoch whose log was here; this log knows nothing of earlier ones."""
    starting: Starting | None = None
    """The last start, if it has not come this far or died."""

    @property
    def incarnations(self) -> tuple[str, ...]:
        """The starts known to the mark."""
        return (self.incarnation, *([self.starting.incarnation] if self.starting else []))


def read_mark(data_dir: Path) -> DataMark | None:
    """The mark of a data directory; None if it has none, as in old versions.

    Raises:
        DamagedMark: invalid content.
        OSError: it cannot be read.
    """
    path = data_dir / NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        mark = msgspec.json.decode(data, type=DataMark)
    except msgspec.DecodeError as exc:
        raise DamagedMark(
            f"{path} is damaged: {exc}; it names the store of the log beside it. If that is the"
            " store in the settings, move the file aside: a start creates it again"
        ) from exc
    if mark.format != FORMAT:
        raise DamagedMark(
            f"{path} has format {mark.format}; this version supports {FORMAT}: start the version"
            " that wrote it, or a newer one"
        )
    return mark


def write_mark(data_dir: Path, mark: DataMark) -> None:
    """Replace the mark atomically and durably.

    On a full disk the old mark stays, with a warning: the log's segments tell the rest.

    Raises:
        OSError: it cannot be written for another reason.
    """
    target = data_dir / NAME
    temporary = data_dir / f"{NAME}.tmp"
    try:
        with suppress(FileNotFoundError):
            temporary.unlink()
        write_synced(os.fspath(temporary), msgspec.json.format(msgspec.json.encode(mark)))
        temporary.replace(target)
        sync_folder(data_dir)
    except OSError as exc:
        with suppress(OSError):
            temporary.unlink()
        if exc.errno not in _NO_ROOM:
            raise
        log.warning("mark not written", path=str(target), error=str(exc), runbook="disk-full")


class LostLog(Exception):
    """The log of the last epoch is missing, and that epoch did not stop cleanly."""


class OtherStore(Exception):
    """The store is not the data directory's, or an older state of it."""


class Left(NamedTuple):
    """The findings of a start before it writes anything."""

    data_dir: Path
    ingester_id: str
    store_url: str
    mark: DataMark | None
    segments: int
    """The number of segments; 0 if the folder is new or nothing is mounted."""
    logged_epoch: int
    """The newest epoch with a segment in the log; 0 if there is none."""
    store_mark: StoreMark | None
    claim: EpochClaim | None
    """The newest claim of this id, unless mark or log are newer."""
    in_store: bool = False
    """Whether the store has the log of that claim, or what it acknowledged at level ``store``."""
    has_objects: bool = False
    """Whether any epoch of this id has log objects."""
    diskless: bool = False
    """Whether this start keeps no log on disk."""

    @property
    def own_mark(self) -> DataMark | None:
        """The folder's mark, if it belongs to this id."""
        return None if self.mark is None or self.mark.ingester_id != self.ingester_id else self.mark

    @property
    def known_epoch(self) -> int:
        """The newest epoch of this id that the data directory knows."""
        return max(self.logged_epoch, 0 if self.own_mark is None else self.own_mark.epoch)

    @property
    def is_anew(self) -> bool:
        """Whether the log of an earlier epoch of this id may be missing."""
        mark, claim = self.own_mark, self.claim
        if mark is None or not self.known_epoch or _lost_log(self) is not None:
            return True
        if mark.starting is not None and mark.starting.anew:
            return True  # it did not come far enough to record its epoch
        return claim is not None and claim.incarnation not in mark.incarnations

    @property
    def lost_disk(self) -> bool:
        """Whether the last epoch kept a log on a disk, and that log is missing."""
        diskless = self.claim is not None and self.claim.diskless
        return _lost_log(self) is not None and not diskless

    @property
    def since(self) -> int:
        """The first epoch whose log was here, unless the log begins with this start."""
        return 0 if self.own_mark is None else self.own_mark.since


def look(
    data_dir: Path,
    ingester_id: str,
    store: ObjectStore,
    recovered: Recovered,
    *,
    diskless: bool = False,
) -> Left:
    """Read both marks and the last claim, without writing. Blocks.

    Args:
        diskless: there is no log on disk, so no mark is read.

    Raises:
        DamagedMark, StoreUnsuitable: a mark cannot be read.
        StoreUnavailable: retry.
    """
    mark = None if diskless else read_mark(data_dir)
    logged = max((s.epoch for s in recovered.segments if s.ingester_id == ingester_id), default=0)
    left = Left(
        data_dir,
        ingester_id,
        store.url,
        mark,
        len(recovered.segments),
        logged,
        read_store_mark(store),
        None,
        diskless=diskless,
    )
    claim = last_claim(store, ingester_id, left.known_epoch)
    in_store = _is_in_store(store, ingester_id, claim)
    while claim is not None and claim.opens and claim.left_open and not in_store:
        if claim.epoch <= left.known_epoch:
            break  # this data directory knows what it left
        # It ended before it took anything: an earlier one may have left a log.
        at = claim.epoch - 1
        claim = read_claim(store, ingester_id, at) if at else None
        in_store = _is_in_store(store, ingester_id, claim)
    has_log = _any(store, object_folder(ingester_id))
    return left._replace(claim=claim, in_store=in_store, has_objects=has_log)


def _is_in_store(store: ObjectStore, ingester_id: str, claim: EpochClaim | None) -> bool:
    """Whether the store has what an epoch acknowledged at level ``store``, or everything."""
    if claim is None:
        return False
    return claim.diskless or _any(store, epoch_folder(ingester_id, claim.epoch))


def _any(store: ObjectStore, folder: str) -> bool:
    return next(iter(store.list(folder)), None) is not None


def judge(left: Left, accepted: RecoverySettings) -> None:
    """Allow or refuse a start. Pure, except for logging.

    Raises:
        OtherStore, LostLog: refused, and not accepted by the settings.
    """
    if left.mark is None and not left.segments:
        # Shows an operator who restored a backup or moved a volume that the log is not here.
        log.info("data directory is new", data_dir=str(left.data_dir), store=left.store_url)
    if left.mark is not None and left.mark.ingester_id != left.ingester_id:
        log.warning(
            "data directory was another id's",
            data_dir=str(left.data_dir),
            was=left.mark.ingester_id,
            ingester_id=left.ingester_id,
            help="its log is kept and replayed; if this id is a mistake, start with the former one",
            runbook="lost-log",
        )
    lost = _lost_log(left)
    if lost is not None and left.in_store:
        _tell_log_in_store(left)
        lost = None
    for problem, setting, is_accepted in (
        (_other_store(left), "recovery.accept_other_store", accepted.accept_other_store),
        (lost, "recovery.accept_lost_log", accepted.accept_lost_log),
    ):
        runbook = "lost-log" if setting.endswith("log") else "other-store"
        if problem is None:
            if is_accepted:
                log.warning(
                    "accepted what was not amiss",
                    setting=setting,
                    help="remove it from the settings: it would hide the next problem",
                    runbook=runbook,
                )
        elif is_accepted:
            log.warning("accepted", setting=setting, problem=str(problem), runbook=runbook)
        else:
            raise problem


def _tell_log_in_store(left: Left) -> None:
    """Say what the log in the store does not replace."""
    claim = left.claim
    if claim is not None and not claim.diskless:
        log.warning(
            "log on disk is not here",
            epoch=claim.epoch,
            host=claim.host,
            data_dir=str(left.data_dir),
            help="what was acknowledged at level store is in the store; what was acknowledged at"
            " level disk and not flushed is on the old disk only: if it can be read, ingester wal"
            " adopt DIR commits it",
            runbook="operations-lost",
        )


def _other_store(left: Left) -> OtherStore | None:
    mark, found = left.mark, left.store_mark
    helps = (
        f"check store and mounts. If the store was restored or replaced on purpose, start once with"
        f" --accept-other-store: the rows in {left.data_dir}/wal then go into this store"
    )
    if mark is not None and found is None:
        return OtherStore(
            f"data_dir {left.data_dir} belongs to store {mark.store} ({mark.store_url}), but"
            f" {left.store_url} has no mark (_store.json): it is empty, not mounted, or another"
            f" store; {helps}"
        )
    if mark is not None and found is not None and mark.store != found.id:
        return OtherStore(
            f"data_dir {left.data_dir} belongs to store {mark.store} ({mark.store_url}), but"
            f" {left.store_url} is store {found.id}; {helps}"
        )
    if left.known_epoch and left.claim is None:
        return OtherStore(
            f"data_dir {left.data_dir} has epoch {left.known_epoch} of ingester"
            f" {left.ingester_id!r}, which store {left.store_url} does not know: it is another"
            f" store, or was restored from a state before that epoch; {helps}"
        )
    return None


def _lost_log(left: Left) -> LostLog | None:
    claim, mark = left.claim, left.mark
    if claim is None:
        return None
    if mark is not None and claim.incarnation in mark.incarnations:
        # The log has a segment of each epoch from before its first row until a later epoch has one.
        epoch = mark.epoch
        is_left_open = not mark.stopped and not (claim.stopped and claim.epoch == epoch)
    else:
        epoch, is_left_open = claim.epoch, claim.left_open
    if not is_left_open or left.logged_epoch >= epoch:
        return None
    found = f"the log ends at epoch {left.logged_epoch}" if left.segments else "there is no log"
    since = f" (started {claim.at} on {claim.host})" if epoch == claim.epoch and claim.host else ""
    return LostLog(
        f"epoch {epoch} of ingester {left.ingester_id!r}{since} did not stop cleanly, and in"
        f" data_dir {left.data_dir} {found}: acknowledged rows may be in the missing log only. Is"
        " the volume mounted, is data_dir correct, does another daemon run under this id?"
        " If that log is lost for good, or was adopted, start once with --accept-lost-log"
    )


def begin(left: Left, store: ObjectStore, incarnation: str) -> str:
    """Mark an unmarked store, and record this start in the data directory's mark. Blocks.

    Returns:
        The store's id.

    Raises:
        StoreUnavailable: retry.
        OSError: the data directory cannot be written.
    """
    starting = Starting(
        incarnation=incarnation,
        store=ensure_mark(store).id,
        store_url=store.url,
        anew=left.is_anew,
    )
    if left.diskless:
        return starting.store
    kept = left.mark
    if kept is None or kept.ingester_id != left.ingester_id:
        kept = DataMark(
            ingester_id=left.ingester_id,
            store=starting.store,
            store_url=store.url,
            epoch=left.logged_epoch,
            incarnation="",
            stopped=False,
        )
    write_mark(left.data_dir, msgspec.structs.replace(kept, starting=starting))
    return starting.store


def claim_body(
    store: ObjectStore, incarnation: str, *, diskless: bool = False, opens: bool = False
) -> dict[str, object]:
    """The body of this start's claim. Blocks."""
    return {
        "incarnation": incarnation,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "at": store.now().isoformat(),
        "tells_stop": True,
        **({"diskless": True} if diskless else {}),
        **({"opens": True} if opens else {}),
    }


def note_epoch(data_dir: Path, writer: WriterIdentity) -> None:
    """Record in the mark that the log has this epoch's first segment, before it takes rows. Blocks.

    See :meth:`wal.Log.start`: on a full disk the segment may come long after the start.

    Raises:
        OSError: the data directory cannot be written.
    """
    mark = read_mark(data_dir)
    if mark is None or mark.starting is None or mark.starting.incarnation != writer.incarnation:
        return
    begun = DataMark(
        ingester_id=writer.ingester_id,
        store=mark.starting.store,
        store_url=mark.starting.store_url,
        epoch=writer.epoch,
        incarnation=writer.incarnation,
        stopped=False,
        since=writer.epoch if mark.starting.anew else mark.since,
    )
    write_mark(data_dir, begun)


def note_stop(data_dir: Path, store: ObjectStore, writer: WriterIdentity) -> None:
    """Record in the store and in the data directory that all rows are in files. Blocks.

    Raises:
        StoreError, OSError: it may not be recorded; the next start then requires the log.
    """
    note_epoch(data_dir, writer)  # a full disk may have left the log without a segment until now
    mark = read_mark(data_dir)
    if mark is None or mark.incarnation != writer.incarnation:
        return
    note_diskless_stop(store, writer)
    write_mark(data_dir, msgspec.structs.replace(mark, stopped=True))


def note_diskless_stop(store: ObjectStore, writer: WriterIdentity) -> None:
    """Record in the store that all rows are in files. Blocks; StoreError."""
    body = {"incarnation": writer.incarnation, "at": store.now().isoformat()}
    tell_stop(store, writer.ingester_id, writer.epoch, body)
