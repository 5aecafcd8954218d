"""The mark of a data directory: whose it is, to which store it belongs, and how it was left.

    <data-dir>/ingester.json   written anew by each start, before its claim and once the log has a
                               segment of its epoch, and by a clean stop; always whole, on the disk

Law of this file: the name of a start (``starting``) is in the mark before it is in the store's
claim, and its epoch is there before a row is taken under it. So a start that died on the way is
told from one whose log has rows; and until then the mark says of the log what it said before.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from persist.store.local import sync_folder, write_synced

log = structlog.get_logger(__name__)

NAME = "ingester.json"
FORMAT = 1
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class DamagedMark(ValueError):
    """``ingester.json`` is not what a start has written, or is of a newer version."""


class Starting(msgspec.Struct, frozen=True, kw_only=True):
    """A start that has no segment in the log yet, and perhaps no epoch."""

    incarnation: str
    store: str
    store_url: str
    anew: bool = False
    """Whether the log of earlier epochs is not here: it was lost, or is elsewhere."""


class DataMark(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the mark."""

    format: int = FORMAT
    ingester_id: str
    store: str
    """The ``id`` in the store's own mark."""
    store_url: str
    """Where that store was, without secrets: for people, and for ``wal adopt``."""
    epoch: int
    """The last epoch whose log was begun here; 0 before the first."""
    incarnation: str
    """The start that ``epoch`` is of."""
    stopped: bool
    """Whether ``epoch`` has stopped with all of its rows in files."""
    since: int = 0
    """The first epoch whose log was here: what earlier ones had, this log does not know."""
    starting: Starting | None = None
    """The last start, where it has not come so far, or died."""

    @property
    def incarnations(self) -> tuple[str, ...]:
        """The starts from here that the mark knows of."""
        return (self.incarnation, *([self.starting.incarnation] if self.starting else []))


def read_mark(data_dir: Path) -> DataMark | None:
    """The mark of a data directory; None where there is none, as before there were marks.

    Raises:
        DamagedMark: It does not say what a mark says.
        OSError: It cannot be read.
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
            f"{path} is damaged: {exc}; it says to which store the log beside it belongs. Move it"
            " aside where that is known to be the one in the settings: a start makes it anew"
        ) from exc
    if mark.format != FORMAT:
        raise DamagedMark(
            f"{path} has format {mark.format}, and this version knows {FORMAT}: start the version"
            " that wrote it, or a newer one"
        )
    return mark


def write_mark(data_dir: Path, mark: DataMark) -> None:
    """Put the mark in place of what was there, in one step, and have it on the disk.

    A disk without room leaves the older one, with a warning: the log's segments say the rest.

    Raises:
        OSError: It cannot be written for another reason.
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
