"""Uploaded buffers that have to go into one version, until the last of them has come.

Law of this file: they join the table's commits in one step of the loop, so that every commit finds
all of them or none. Buffers of one partition come one after another, in the order in which they
were frozen, and so do the sets of a table: no two sets wait for each other. Nobody waits
for one that cannot be made into files. Loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ingester.buffer import AtomicFlush, FlushJob
from ingester.tables.pending_commit import PersistedBuffer


@dataclass(slots=True, eq=False)
class _Meeting:
    here: list[PersistedBuffer] = field(default_factory=list)
    over: trio.Event = field(default_factory=trio.Event)


class CommitBarrier:
    """Of all tables."""

    def __init__(self, join: Callable[[PersistedBuffer], None]) -> None:
        self._join = join
        self._meetings: dict[AtomicFlush, _Meeting] = {}

    async def join(self, ticket: PersistedBuffer) -> None:
        """Join the commits, with all that have to go into the same version."""
        together = ticket.job.atomic
        if together is None or together.dissolved:
            self._join(ticket)
            return
        meeting = self._meetings.setdefault(together, _Meeting())
        meeting.here.append(ticket)
        if len(meeting.here) < len(together.members):
            await meeting.over.wait()
        else:
            self._end(together)

    def dissolve(self, job: FlushJob) -> bool:
        """Have the others go without this one, which cannot; whether they would have waited."""
        together = job.atomic
        if together is None or together.dissolved:
            return False
        together.dissolved = True
        self._end(together)
        return True

    def _end(self, together: AtomicFlush) -> None:
        # Gone before they join: those that are sent away meet again.
        meeting = self._meetings.pop(together, None)
        if meeting is not None:
            for each in meeting.here:
                self._join(each)
            meeting.over.set()


def whole(group: list[PersistedBuffer]) -> list[PersistedBuffer]:
    """Those of a group of which nobody is missing who has to go into the same version."""
    here = {member.handle for member in group}
    return [
        member
        for member in group
        if (atomic := member.job.atomic) is None
        or atomic.dissolved
        or here.issuperset(atomic.members)
    ]


__all__ = ["CommitBarrier", "whole"]
