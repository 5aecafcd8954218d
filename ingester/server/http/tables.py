"""The routes of one table: its description, partitions and files.

The view of a table is taken on the loop and encoded in a thread, one at a time, because a table may
have 100,000 files. No request goes to the store, so that tables are shown while it is unreachable.
Names are checked before they are looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
import trio
from starlette.requests import Request

from ingester.errors import BadRequest, UnknownTable
from ingester.observability.status_lists import DEFAULT_LIMIT, MAX_LIMIT, PageRequest
from ingester.observability.table_detail import TableView
from ingester.schema.limits import check_table_name


class TableSource(Protocol):
    """The source of tables; each call is quick and does not block."""

    def table(self, namespace: str, table: str) -> TableView | None:
        """Return an open table as it is now; None if it is not open here."""


class TableRoutes:
    """Answers the routes of tables. On the loop."""

    def __init__(self, source: TableSource) -> None:
        self._source = source
        # One at a time: requests must not take the threads that flushes need.
        self._turn = trio.CapacityLimiter(1)

    async def detail(self, request: Request) -> bytes:
        """Return the JSON of a table. Raises ``BadRequest``, ``UnknownTable``."""
        return await self._told(self._view(request).detail)

    async def page(self, request: Request) -> bytes:
        """Return the JSON of a page of one of a table's lists.

        Raises:
            BadRequest: the list or partition does not exist, or the bounds are invalid.
            UnknownTable: the table is not open here.
        """
        asked, view = page_request(request), self._view(request)
        partition = request.query_params.get("partition")
        return await self._told(lambda: view.page(asked, partition))

    def _view(self, request: Request) -> TableView:
        namespace = check_table_name("namespace", request.path_params["namespace"])
        table = check_table_name("table", request.path_params["table"])
        view = self._source.table(namespace, table)
        if view is None:
            raise UnknownTable(
                f"table {namespace}/{table} is not open at this daemon; a write or a query opens it"
            )
        return view

    async def _told(self, make: Callable[[], object]) -> bytes:
        return await trio.to_thread.run_sync(
            lambda: msgspec.json.encode(make()), limiter=self._turn
        )


def page_request(request: Request) -> PageRequest:
    """Return the requested page. Raises ``BadRequest`` if the limit is not a number."""
    asked = request.query_params
    limit = asked.get("limit", str(DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 10):
        raise BadRequest(f"status: limit {limit[:40]!r} is not a number from 1 to {MAX_LIMIT}")
    return PageRequest(
        list=request.path_params["list"],
        after=asked.get("after", ""),
        limit=int(limit),
        match=asked.get("match", ""),
    )
