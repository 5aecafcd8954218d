"""The long lists of a status, by pages: tables, origins, followers, replications, namespaces.

    ``Status`` ── the top of each list, and how many there are in all
    ``/api/status/{list}?after=…&limit=…&match=…`` ── every one, in the order of its key

Law: an answer has a bound, whatever the daemon holds: the status has ``TOP`` of each list at most,
a page ``MAX_LIMIT``. A key is text, and stays the same as long as its thing is there; ``next`` is
the key after which the next page begins, null on the last one. What comes or goes between two pages
moves nothing else.

Pure: no trio, no sockets, no files.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from ingester.errors import InvalidRequest
from ingester.observability.status import ReplicationStatus

TOP = 100
"""The most tables, origins and followers that a status has itself."""
TOP_REPLICATIONS = 10
TOP_TROUBLED, TOP_FOLLOWING = 30, 10
"""The most tables of a replication that a status names: those that do not follow, and others."""
DEFAULT_LIMIT, MAX_LIMIT = 100, 1000
MAX_KEY_BYTES = 2048

T = TypeVar("T")


class StatusPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of one list."""

    list: str
    total: int
    """The number of all that the list has, or that match."""
    items: tuple[Any, ...]
    """In the order of their keys; each as the status has it."""
    next: str | None = None
    """The key to ask for as ``after``; null where nothing follows."""


class PageRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The page that is asked for: the body of the action ``status_list``."""

    list: str
    after: str = ""
    limit: int = DEFAULT_LIMIT
    match: str = ""
    """What keys have in them, in either case; empty is all."""

    def check(self, known: Iterable[str]) -> None:
        """Raise ``InvalidRequest`` for a list that is not there, or bounds that are not taken."""
        if self.list not in (names := list(known)):
            raise InvalidRequest(
                f"status: list {self.list[:40]!r} is not one of {', '.join(names)}"
            )
        if not 1 <= self.limit <= MAX_LIMIT:
            raise InvalidRequest(f"status: limit {self.limit} is not from 1 to {MAX_LIMIT}")
        for name, text in (("after", self.after), ("match", self.match)):
            if len(text.encode(errors="replace")) > MAX_KEY_BYTES:
                raise InvalidRequest(f"status: {name} has more than {MAX_KEY_BYTES} B")


def page_of(
    asked: PageRequest, keyed: Iterable[tuple[str, T]], tell: Callable[[T], object]
) -> StatusPage:
    """Give the page of what comes after a key.

    Args:
        asked: checked.
        keyed: everything, in any order, by its key.
        tell: makes an item of the page; called for those of the page only.
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
    """Give those that are not well first, each with so many of its tables as a status names."""
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
