"""The long lists of a status, in pages: tables, origins, followers, replications, namespaces.

    ``Status`` ── the first entries of each list, and its length
    ``/api/status/{list}?after=…&limit=…&match=…`` ── all entries, in order of their keys

The size of an answer is bounded: the status has at most ``TOP`` entries of a list, a page
``MAX_LIMIT``. A key is text that identifies its entry as long as that exists; ``next`` is the key
after which the next page begins, null on the last one, so that changes between two pages move
nothing else. Pure.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from ingester.errors import BadRequest
from ingester.observability.status import ReplicationStatus

TOP = 100
"""The most tables, origins and followers in a status."""
TOP_REPLICATIONS = 10
TOP_TROUBLED, TOP_FOLLOWING = 30, 10
"""The most tables of a replication in a status: those that do not follow, and others."""
DEFAULT_LIMIT, MAX_LIMIT = 100, 1000
MAX_KEY_BYTES = 2048

T = TypeVar("T")


class StatusPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of one list."""

    list: str
    total: int
    """The number of all entries, or of all that match."""
    items: tuple[Any, ...]
    """The entries in order of their keys, in the form of the status."""
    next: str | None = None
    """The key to pass as ``after``; null on the last page."""


class PageRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requested page: the body of the action ``status_list``."""

    list: str
    after: str = ""
    limit: int = DEFAULT_LIMIT
    match: str = ""
    """A part of the keys to find, case-insensitive; empty matches all."""

    def check(self, known: Iterable[str]) -> None:
        """Raise ``BadRequest`` for an unknown list or invalid limits."""
        if self.list not in (names := list(known)):
            raise BadRequest(f"status: list {self.list[:40]!r} is not one of {', '.join(names)}")
        if not 1 <= self.limit <= MAX_LIMIT:
            raise BadRequest(f"status: limit {self.limit} is not from 1 to {MAX_LIMIT}")
        for name, text in (("after", self.after), ("match", self.match)):
            if len(text.encode(errors="replace")) > MAX_KEY_BYTES:
                raise BadRequest(f"status: {name} has more than {MAX_KEY_BYTES} B")


def page_of(
    asked: PageRequest, keyed: Iterable[tuple[str, T]], tell: Callable[[T], object]
) -> StatusPage:
    """Return the page after a key.

    Args:
        asked: checked.
        keyed: all entries by key, in any order.
        tell: makes the item of an entry; called for the page only.
    """
    total, wanted = 0, asked.match.casefold()

    def later() -> Iterable[tuple[str, T]]:
        nonlocal total
        for each in keyed:
            if wanted and wanted not in each[0].casefold():
                continue
            total += 1
            if each[0] > asked.after:
                yield each

    found = heapq.nsmallest(asked.limit + 1, later(), key=lambda each: each[0])
    page = found[: asked.limit]
    return StatusPage(
        list=asked.list,
        total=total,
        items=tuple(tell(each) for _, each in page),
        next=page[-1][0] if len(found) > len(page) else None,
    )


def top_of(replications: Iterable[ReplicationStatus]) -> list[ReplicationStatus]:
    """Return the replications, those without reports first, each with a bounded list of tables."""
    first = heapq.nsmallest(
        TOP_REPLICATIONS, replications, key=lambda each: (each.alive, each.namespace, each.origin)
    )
    return [_shortened(each) for each in first]


def _shortened(replication: ReplicationStatus) -> ReplicationStatus:
    tables = replication.tables
    if len(tables) <= TOP_FOLLOWING:
        return replication
    troubled = [each for each in tables if each.phase != "following"]
    following = [each for each in tables if each.phase == "following"]
    named = (*troubled[:TOP_TROUBLED], *following[:TOP_FOLLOWING])
    return msgspec.structs.replace(replication, tables=named)
