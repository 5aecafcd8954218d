"""In which order regions go live, and in which they go back.

    at_once        each as soon as its own data is there
    in_order       one after another, as they are listed
    target_first   one region, then all others at once

A region has had its turn when it serves and its ``post_version_swap`` has said proceed, or when it
was left behind because it could not be reached. Back it goes in the reverse order of the swaps as
they were begun. Law of this file: pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal

import msgspec


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The regions of a push, and the order in which they go live.

    Raises:
        ValueError: no region, one named twice, or a target that is none of them.
    """

    regions: tuple[str, ...]
    kind: Literal["at_once", "in_order", "target_first"] = "at_once"
    target: str | None = None

    def __post_init__(self) -> None:
        if not self.regions:
            raise ValueError("a push needs at least one region")
        twice = sorted({name for name in self.regions if self.regions.count(name) > 1})
        if twice:
            raise ValueError(f"regions {', '.join(twice)} are named twice")
        if (self.kind == "target_first") != (self.target is not None):
            raise ValueError("order target_first and a target region go together")
        if self.target is not None and self.target not in self.regions:
            raise ValueError(f"target {self.target!r} is none of {', '.join(self.regions)}")

    def before(self, region: str) -> Collection[str]:
        """Return the regions that have their turn before this one."""
        if self.kind == "in_order":
            return self.regions[: self.regions.index(region)]
        if self.target is not None and region != self.target:
            return (self.target,)
        return ()


def is_next(order: Order, region: str, passed: Callable[[str], bool]) -> bool:
    """Return whether the region may go live, with those that had their turn known to ``passed``."""
    return all(passed(name) for name in order.before(region))


def way_back(swaps: Sequence[tuple[int, str]]) -> list[str]:
    """Return the regions in the order of their going back, by the numbers of their swaps."""
    return [name for number, name in sorted(swaps, reverse=True) if number > 0]
