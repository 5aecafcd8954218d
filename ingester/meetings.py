"""Uploaded buffers that have to go into one version, until the last of them has come.

Law of this file: they join the table's commits in one step of the loop, so that every commit finds
all of them or none. Buffers of one partition come one after another, in the order in which they
were frozen, and so do the sets of a table: no two sets wait for each other. Loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ingester.buffer import BufferHandle
from ingester.waiting import PersistedBuffer


@dataclass(slots=True, eq=False)
class _Meeting:
    here: list[PersistedBuffer] = field(default_factory=list)
    over: trio.Event = field(default_factory=trio.Event)


class Meetings:
    """Of all tables."""

    def __init__(self, join: Callable[[PersistedBuffer], None]) -> None:
        self._join = join
        self._meetings: dict[BufferHandle, _Meeting] = {}

    async def join(self, ticket: PersistedBuffer) -> None:
        """Join the commits, with all that have to go into the same version."""
        together = ticket.handle.flushed_with
        if not together:
            self._join(ticket)
            return
        meeting = self._meetings.setdefault(together[0], _Meeting())
        meeting.here.append(ticket)
        if len(meeting.here) < len(together):
            await meeting.over.wait()
            return
        # Gone before they join: those that are sent away meet again.
        del self._meetings[together[0]]
        for each in meeting.here:
            self._join(each)
        meeting.over.set()


def whole(group: list[PersistedBuffer]) -> list[PersistedBuffer]:
    """Those of a group of which nobody is missing who has to go into the same version."""
    here = {member.handle for member in group}
    return [member for member in group if here.issuperset(member.handle.flushed_with)]


__all__ = ["Meetings", "whole"]
