"""What a region does for a push, and the three ways in which it may fail to.

Law of this file: whatever the controller asks may be asked again, by itself after a crash or by a
successor, and then does nothing more. Once ``roll_back`` or ``discard`` has returned, no
``create_version`` and no ``swap`` of that push takes effect any more, not even one whose call began
before: a controller that was paused in the middle of a swap must not undo a rollback.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ingester.pushes.contexts import Comparison
from ingester.pushes.record import PushRecord


class RegionUnreachable(Exception):
    """The region does not answer; whether it has done what was asked is unknown. Asked again."""


class AnotherStore(RegionUnreachable):
    """The store is not the one that was the region when the push made its version there."""


class RegionFailed(Exception):
    """The region has not done it, and will not: nothing was changed."""


class Created(NamedTuple):
    """The version that a push makes in a region, and the one that is current there."""

    table_version: int
    previous: int | None


class Region(Protocol):
    """A store and its daemons, as a push sees them. Calls block, and come one at a time.

    Each may raise :class:`RegionUnreachable` or :class:`RegionFailed`.
    """

    @property
    def name(self) -> str:
        """The region's name in the push's order."""
        ...

    def register_schema(self, push: PushRecord) -> None:
        """Check the push's schema against the table's, and register it; the first region alone."""
        ...

    def create_version(self, push: PushRecord) -> Created:
        """Make the push's version, empty and not current."""
        ...

    def start_followers(self, push: PushRecord) -> None:
        """Let the region's followers begin to load the version."""
        ...

    def written(self, push: PushRecord) -> bool:
        """Return whether all of the push's data is there and was checked."""
        ...

    def lagging_followers(self, push: PushRecord) -> Sequence[str]:
        """Return the followers that are registered and alive and have not confirmed the version."""
        ...

    def swap(self, push: PushRecord) -> int | None:
        """Make the push's version the current one, and return which one was so before."""
        ...

    def roll_back(self, push: PushRecord) -> bool:
        """Make the version current that was so before the push's swap.

        Returns:
            Whether the push's version was current, now or before an earlier call of this. If not,
            nothing changes, but no swap takes effect any more.

        Raises:
            RegionFailed: It was current, and a later version is: that one would make way for it.
        """
        ...

    def discard(self, push: PushRecord) -> bool:
        """Give the push's version up, if there is one and it is not current.

        Returns:
            False where it is the current one: then nothing has changed.
        """
        ...

    def statistics(self, push: PushRecord) -> Comparison | None:
        """Return how the version compares to the current one, None while there is none."""
        ...
