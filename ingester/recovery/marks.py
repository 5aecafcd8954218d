"""Whether a start finds what was left: its log, and the store that the log belongs to.

    data directory  ──▶ ``data_mark``: store, last epoch, last start
    log             ──▶ whether it has segments, and the newest epoch in them     ──▶ ``judge``
    store           ──▶ its own mark, the last claim of this id, its word of a clean stop
                                                                                   │
                          the start goes on ◀── nothing amiss, or accepted by name ┴▶ refused

Law of this file: nothing is written before it is known that this is the store and that the log is
here. Two things are recognised. A *lost log*: the last epoch of this id has not stopped cleanly,
and its log is not in this folder (a volume that is not mounted, a wrong ``data_dir``, another
daemon of this id). *Another store*: not the one that this folder belongs to, an emptied one (a
mount point with nothing mounted), or one from before this folder's last start (a restore). What was
written before there were marks knows nothing of them, and gets them without a word.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from ingester.config.settings import RecoverySettings
from ingester.recovery.data_mark import DataMark, Starting, read_mark, write_mark
from persist.manifest import EpochClaim, WriterIdentity, last_claim, tell_stop
from persist.store import ObjectStore, StoreMark, ensure_mark
from persist.store import read_mark as read_store_mark
from wal import Recovered

log = structlog.get_logger(__name__)


class LostLog(Exception):
    """The log of the last epoch is not here, and that epoch has not stopped cleanly."""


class OtherStore(Exception):
    """The store is not the one that the data directory belongs to, or not as it was."""


class Left(NamedTuple):
    """What a start finds before it has written anything."""

    data_dir: Path
    ingester_id: str
    store_url: str
    mark: DataMark | None
    segments: int
    """Segments of the log; 0 where the folder is new or nothing is mounted."""
    logged_epoch: int
    """The newest epoch that the log has a segment of; 0 where there is none."""
    store_mark: StoreMark | None
    claim: EpochClaim | None
    """The newest claim of this id, where there is one not older than mark and log."""

    @property
    def own_mark(self) -> DataMark | None:
        """The folder's mark, where it is of this id."""
        return None if self.mark is None or self.mark.ingester_id != self.ingester_id else self.mark

    @property
    def known_epoch(self) -> int:
        """The newest epoch of this id that the data directory knows of."""
        return max(self.logged_epoch, 0 if self.own_mark is None else self.own_mark.epoch)

    @property
    def is_anew(self) -> bool:
        """Whether the log of an earlier epoch of this id may not be here."""
        mark, claim = self.own_mark, self.claim
        if mark is None or not self.known_epoch or _lost_log(self) is not None:
            return True
        if mark.starting is not None and mark.starting.anew:
            return True  # it has not come so far as to say so of its epoch
        return claim is not None and claim.incarnation not in mark.incarnations

    @property
    def since(self) -> int:
        """The first epoch whose log was here, where it is not begun anew."""
        return 0 if self.own_mark is None else self.own_mark.since


def look(data_dir: Path, ingester_id: str, store: ObjectStore, recovered: Recovered) -> Left:
    """Read both marks and the last claim; writes nothing. Blocks.

    Raises:
        DamagedMark, StoreUnsuitable: A mark cannot be read.
        StoreUnavailable: Try again.
    """
    mark = read_mark(data_dir)
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
    )
    return left._replace(claim=last_claim(store, ingester_id, left.known_epoch))


def judge(left: Left, accepted: RecoverySettings) -> None:
    """Let a start go on or refuse it. Pure, but for what it logs.

    Raises:
        OtherStore, LostLog: Refused, and not accepted by the settings.
    """
    if left.mark is None and not left.segments:
        # Whoever has restored a backup, or moved a volume, sees by it that it is not here.
        log.info("data directory is new", data_dir=str(left.data_dir), store=left.store_url)
    if left.mark is not None and left.mark.ingester_id != left.ingester_id:
        log.warning(
            "data directory was another id's",
            data_dir=str(left.data_dir),
            was=left.mark.ingester_id,
            ingester_id=left.ingester_id,
            help="its log is kept, and replayed; where this id is a mistake, start it as it was",
            runbook="lost-log",
        )
    for problem, setting, is_accepted in (
        (_other_store(left), "recovery.accept_other_store", accepted.accept_other_store),
        (_lost_log(left), "recovery.accept_lost_log", accepted.accept_lost_log),
    ):
        runbook = "lost-log" if setting.endswith("log") else "other-store"
        if problem is None:
            if is_accepted:
                log.warning(
                    "accepted what was not amiss",
                    setting=setting,
                    help="take it out of the settings: it would hide the next one",
                    runbook=runbook,
                )
        elif is_accepted:
            log.warning("accepted", setting=setting, problem=str(problem), runbook=runbook)
        else:
            raise problem


def _other_store(left: Left) -> OtherStore | None:
    mark, found = left.mark, left.store_mark
    helps = (
        f"check store and mounts. Where it is meant (a store that was restored or replaced), start"
        f" once with --accept-other-store: what {left.data_dir}/wal holds goes into this store then"
    )
    if mark is not None and found is None:
        return OtherStore(
            f"data_dir {left.data_dir} belongs to store {mark.store} ({mark.store_url}), and"
            f" {left.store_url} has no mark (_store.json): it is empty, not mounted, or another"
            f" one; {helps}"
        )
    if mark is not None and found is not None and mark.store != found.id:
        return OtherStore(
            f"data_dir {left.data_dir} belongs to store {mark.store} ({mark.store_url}), and"
            f" {left.store_url} is store {found.id}; {helps}"
        )
    if left.known_epoch and left.claim is None:
        return OtherStore(
            f"data_dir {left.data_dir} has had epoch {left.known_epoch} of ingester"
            f" {left.ingester_id!r}, of which store {left.store_url} knows nothing: it is another"
            f" one, or was restored from a state before that epoch; {helps}"
        )
    return None


def _lost_log(left: Left) -> LostLog | None:
    claim, mark = left.claim, left.mark
    if claim is None:
        return None
    if mark is not None and claim.incarnation in mark.incarnations:
        # The log has a segment of each epoch from before its first row on, until a later one has.
        epoch = mark.epoch
        is_left_open = not mark.stopped and not (claim.stopped and claim.epoch == epoch)
    else:
        epoch, is_left_open = claim.epoch, claim.left_open
    if not is_left_open or left.logged_epoch >= epoch:
        return None
    there = f"the log ends at epoch {left.logged_epoch}" if left.segments else "there is no log"
    since = f" (started {claim.at} on {claim.host})" if epoch == claim.epoch and claim.host else ""
    return LostLog(
        f"epoch {epoch} of ingester {left.ingester_id!r}{since} has not stopped cleanly, and in"
        f" data_dir {left.data_dir} {there}: rows that it acknowledged may be in its log alone. Is"
        " the volume mounted, is data_dir the right one, does another daemon run under this id?"
        " Where that log is lost for good, or has been adopted, start once with --accept-lost-log"
    )


def begin(left: Left, store: ObjectStore, incarnation: str) -> str:
    """Mark the store, where it has no mark yet, and the data directory with this start. Blocks.

    Returns:
        The id of the store.

    Raises:
        StoreUnavailable: Try again.
        OSError: The data directory cannot be written.
    """
    starting = Starting(
        incarnation=incarnation,
        store=ensure_mark(store).id,
        store_url=store.url,
        anew=left.is_anew,
    )
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


def claim_body(store: ObjectStore, incarnation: str) -> dict[str, object]:
    """What the claim says of this start. Blocks."""
    return {
        "incarnation": incarnation,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "at": store.now().isoformat(),
        "tells_stop": True,
    }


def note_epoch(data_dir: Path, writer: WriterIdentity) -> None:
    """Keep in the mark that the log has this epoch's first segment; before it takes rows. Blocks.

    Raises:
        OSError: The data directory cannot be written.
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
    """Say in the store and in the data directory that all rows of this epoch are in files. Blocks.

    Raises:
        StoreError, OSError: It may or may not have been said: the next start wants the log.
    """
    mark = read_mark(data_dir)
    if mark is None or mark.incarnation != writer.incarnation:
        return
    body = {"incarnation": writer.incarnation, "at": store.now().isoformat()}
    tell_stop(store, writer.ingester_id, writer.epoch, body)
    write_mark(data_dir, msgspec.structs.replace(mark, stopped=True))
