"""Which finished persists of a table go into a commit together.

    uploaded ──▶ group ──┬─ nothing else of the table is on its way      ┐
                         ├─ it is large enough, in number or in bytes    ├─▶ one commit
                         └─ the first of it has waited long enough       ┘

Law of this file: whoever has no company on the way does not wait. A commit costs a store about the
same for one file and for a hundred, and makes a version that stays for a day: 10,000 partitions
that persist at once would make thousands of them on a store that answers fast. Loop only.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import trio

ENOUGH = 128
"""Files of a commit, about."""
ENOUGH_BYTES = 32 << 20
"""Of buffers, which stay in memory until the commit."""
PATIENCE_S = 5.0
"""A store on which 128 uploads take longer than this makes no more than 12 versions a minute."""


@dataclass(slots=True, eq=False)
class _Group:
    """Those that wait for the same commit."""

    members: int = 0
    nbytes: int = 0
    left: trio.Event = field(default_factory=trio.Event)


@dataclass(slots=True, eq=False)
class _Table:
    expected: set[Hashable] = field(default_factory=set)
    group: _Group = field(default_factory=_Group)

    def leave(self) -> None:
        self.group.left.set()
        self.group = _Group()


class CommitLinger:
    """Of all tables; a buffer is expected from when it is frozen until it is uploaded."""

    def __init__(self) -> None:
        self._tables: dict[Hashable, _Table] = {}

    def expect(self, table: Hashable, buffer: Hashable) -> None:
        """A buffer is on its way."""
        self._tables.setdefault(table, _Table()).expected.add(buffer)

    def forget(self, table: Hashable, buffer: Hashable) -> None:
        """It does not come, or not soon, or not in company."""
        found = self._tables.get(table)
        if found is not None:
            found.expected.discard(buffer)
            self._go_if_ready(table, found)

    async def gathered(self, table: Hashable, buffer: Hashable, nbytes: int) -> None:
        """A buffer is uploaded: return when its group should be committed."""
        found = self._tables.setdefault(table, _Table())
        group = found.group
        group.members += 1
        group.nbytes += nbytes
        found.expected.discard(buffer)
        self._go_if_ready(table, found)
        with trio.move_on_after(PATIENCE_S) as patience:
            await group.left.wait()
        if patience.cancelled_caught and found.group is group:
            found.leave()

    def _go_if_ready(self, key: Hashable, table: _Table) -> None:
        group = table.group
        alone = not table.expected
        if alone or group.members >= ENOUGH or group.nbytes >= ENOUGH_BYTES:
            table.leave()
        if alone:
            self._tables.pop(key, None)
