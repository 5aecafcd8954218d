"""The sign of life of a daemon whose log objects have rows that are in no file. Pure.

    _log/<ingester id>/heartbeat.json      replaced every ``HEARTBEAT_S`` while there are such rows,
                                           and once more when there are none

Another daemon that looks after this log (``recovery.adopt = ["store:ID"]``) adopts it when nothing
below its folder has changed for ``recovery.adopt_after``. Adopting the log of a live process is
safe: it fences that process. The heartbeat only keeps it from happening.
"""

from __future__ import annotations

import msgspec

from wal.objects import ObjectName, object_folder

HEARTBEAT_S = 5.0
"""The interval; ``recovery.adopt_after`` should be several times as long."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the object.

    Every log object up to number ``in_files`` of ``epoch``, and all those of earlier epochs, have
    their rows in files.
    """

    epoch: int
    incarnation: str
    in_files: int = 0
    beat: int = 0
    """Rises with each one."""

    def covers(self, name: ObjectName) -> bool:
        """Whether all rows of a log object are in files."""
        return (name.epoch, name.number) <= (self.epoch, self.in_files)


def heartbeat_path(ingester_id: str) -> str:
    """The path of an ingester's heartbeat."""
    return f"{object_folder(ingester_id)}heartbeat.json"


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """The bytes of the object."""
    return msgspec.json.encode(heartbeat)


def decode_heartbeat(data: bytes) -> Heartbeat | None:
    """The heartbeat; None if it is of another version, which says nothing."""
    try:
        return msgspec.json.decode(data, type=Heartbeat)
    except msgspec.DecodeError:
        return None
