"""The routes: their answers, status codes and headers.

| route               | 200                     | 503                                        |
|---------------------|-------------------------|--------------------------------------------|
| GET /health/live    | the loop runs           | it has been blocked for half a minute       |
| GET /health/ready   | calls are accepted      | starting, drained, stopping, fenced: why   |
| ... ?for=query      | and queries of files    | the same, or the store is unreachable      |
| ... ?for=write      | and writes are accepted | the same, or writes are refused for now    |
|                     | (``limited`` while the store is unreachable: open tables only)       |
| GET /metrics        | Prometheus, OpenMetrics |                                            |
| GET /api/status     | ``DaemonStatus``        |                                            |
| GET /api/status/X   | ``StatusPage`` of list X, with ``?after=KEY&limit=N&match=TEXT``    |
| GET /api/tables/N/T | ``table_detail.TableDetail``; behind it ``/partitions``, ``/files``  |
| GET /api/history    | ``History``             |                                            |
| POST /api/sql       | the answer to an SQL query: see ``sql``                              |
| /iceberg/v1/…       | an Iceberg REST catalogue: see ``iceberg``                           |
| GET /               | the operator's page     |                                            |

HEAD is answered like GET, without a body. Everything but the page and the metrics is a JSON object;
an error is ``{"code": …, "message": …}``, except below ``/iceberg``. No body contains a traceback
or a source path: the log has them under the id in the body. No answer may be cached. Handlers do
not block, and each reads the daemon's state at one moment.
"""

import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal, Protocol

import msgspec
import structlog
import trio
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ingester.errors import BadRequest, UnknownTable
from ingester.observability.status import Alarm, DaemonStatus, History, encode_status
from ingester.observability.status_lists import DEFAULT_LIMIT, MAX_LIMIT, PageRequest, StatusPage
from ingester.observability.table_detail import TableView
from ingester.schema.limits import check_table_name
from ingester.server.auth.rights import NOBODY, Sees
from ingester.server.http.entrance import GONE, Entrance, Handler, TurnedAway
from ingester.server.http.iceberg import ROOT, IcebergRoutes, refusal
from ingester.server.http.iceberg import error as iceberg_error
from ingester.server.http.page import assemble
from ingester.server.http.sql import PATH as SQL_PATH
from ingester.server.http.sql import QUERIES, SqlRoute
from ingester.sql.engine import SqlEngine
from persist.store import ObjectStore

log = structlog.get_logger()

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
Purpose = Literal["any", "query", "write"]
_PURPOSES: dict[str, Purpose] = {"any": "any", "query": "query", "write": "write"}
OTHER_ROUTE = "other"
MAX_ANSWERS = 16
"""Answers under way at a time, beside those of health, and as many of the catalogue. One may have a
megabyte, which stays here while its client does not read it."""
_ERROR_CODES = {404: "not_found", 405: "method_not_allowed"}


class StatusSource(Protocol):
    """The calls of the routes to the daemon; each is quick and does not block."""

    @property
    def registry(self) -> CollectorRegistry:
        """The metrics that ``/metrics`` shows."""

    def live(self) -> bool:
        """Return whether the event loop runs; a starting daemon is live."""

    def readiness(self, purpose: Purpose) -> list[str]:
        """Return why the daemon cannot serve; empty means ready.

        Args:
            purpose: ``query`` includes an unreachable store, ``write`` whatever refuses an
                ordinary batch for now (memory, queue, disk).
        """

    def alarms(self) -> list[Alarm]:
        """Return the current alarms."""

    def history(self) -> History:
        """Return the history of the last minutes."""

    def answered(self, route: str, status: int) -> None:
        """Count an answer; unknown paths and methods count as ``OTHER_ROUTE``."""

    def status(self, sees: Sees | None) -> DaemonStatus:
        """Return the daemon's status, or the part that a caller sees."""

    def page(self, asked: PageRequest, sees: Sees | None) -> StatusPage:
        """Return a page of one of the status's lists, or raise ``BadRequest``."""

    def table(self, namespace: str, table: str) -> TableView | None:
        """Return an open table as it is now; None if it is not open here."""

    def open_store(self) -> ObjectStore | str:
        """Return the daemon's store, or why it cannot be read now."""

    def open_sql(self) -> SqlEngine | str:
        """Return the daemon's SQL engine, or why it answers no queries now."""


@cache
def runbook_entries() -> dict[str, str]:
    """Return the entries of ``deploy/RUNBOOK.md`` by the names that alarms and errors give."""
    text = resources.files(__package__).joinpath("RUNBOOK.md").read_text("utf-8")
    parts = re.split(r"^## (?=[a-z-]+$)", text, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: f"## {part}" for part in parts}


class BoundedAnswers:
    """ASGI middleware that answers 503 beyond ``MAX_ANSWERS`` answers under way. On the loop.

    Queries and the catalogue's routes, which wait for the store, have places of their own: the
    status and the metrics must be seen meanwhile.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._places = trio.Semaphore(MAX_ANSWERS)
        self._of_catalogue = trio.Semaphore(MAX_ANSWERS)
        self._of_sql = trio.Semaphore(QUERIES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"].startswith("/health/"):
            await self._app(scope, receive, send)
            return
        places = self._places
        if scope["path"].startswith(f"{ROOT}/"):
            places = self._of_catalogue
        elif scope["path"] == SQL_PATH:
            places = self._of_sql
        try:
            places.acquire_nowait()
        except trio.WouldBlock:
            await _saturated(scope["path"])(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            places.release()


def create_app(
    source: StatusSource,
    entrance: Entrance | None = None,
    store_options: Mapping[str, Any] | None = None,
) -> Starlette:
    """Return the ASGI application that answers for ``source``.

    Args:
        entrance: checks requests; by default everybody may ask, by this machine's names.
        store_options: those of the store in the settings.
    """
    entrance = entrance or Entrance()
    html, policy = assemble()
    # One at a time: concurrent scrapes must not take the threads that flushes need.
    scrapes = trio.CapacityLimiter(1)
    tables, queries = _TableRoutes(source), SqlRoute(source.open_sql)

    async def live(_: Request) -> Response:
        is_live = source.live()
        return _json({"live": is_live}, 200 if is_live else 503)

    async def ready(request: Request) -> Response:
        asked = request.query_params.get("for", "any")
        purpose: Purpose | None = _PURPOSES.get(asked)
        if purpose is None:
            message = f"'for' is {asked[:40]!r}; it takes 'query', 'write' and 'any' (the default)"
            return _error(400, "invalid", message)
        reasons = source.readiness(purpose)
        alarms = source.alarms()
        limited = [f"store: {each.message}" for each in alarms if each.name == "store-away"]
        body = {
            "ready": not reasons,
            "for": purpose,
            "reasons": reasons,
            "alarms": [alarm.name for alarm in alarms],
            "limited": limited if purpose == "write" and not reasons else [],
        }
        return _json(body, 503 if reasons else 200)

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # In a thread, because the text of many tables takes long. Gauges return to the loop.
        body = await trio.to_thread.run_sync(encode, source.registry, limiter=scrapes)
        return Response(body, headers=_HEADERS | {"Content-Type": content_type})

    async def status(request: Request) -> Response:
        told, caller = source.status(request.state.sees), request.state.permit.caller
        # Strangers, who may see an open status, are asked for a token by the query itself.
        if caller is not NOBODY and not caller.may_somewhere("read"):
            told = replace(told, sql=replace(told.sql, available=False))
        return _json_bytes(encode_status(told), 200)

    async def status_list(request: Request) -> Response:
        try:
            page = source.page(_page_request(request), request.state.sees)
            return _json_bytes(msgspec.json.encode(page), 200)
        except BadRequest as exc:
            return _error(400, "invalid", exc.message)

    async def table(request: Request) -> Response:
        return await _told(tables.detail, request)

    async def table_list(request: Request) -> Response:
        return await _told(tables.page, request)

    async def sql(request: Request) -> Response:
        return _json_bytes(await queries.answer(request), 200)

    async def history(_: Request) -> Response:
        return _json_bytes(msgspec.json.encode(source.history()), 200)

    async def runbook(request: Request) -> Response:
        text = runbook_entries().get(request.path_params["entry"])
        if text is None:
            return _error(404, "not_found", "the runbook has no entry of this name")
        return Response(text, headers=_HEADERS, media_type="text/plain")

    async def show_page(_: Request) -> Response:
        headers = _HEADERS | {"Content-Security-Policy": policy, "X-Frame-Options": "DENY"}
        return Response(html, headers=headers, media_type="text/html")

    shown = {
        "/health/live": live,
        "/health/ready": ready,
        "/metrics": metrics,
        "/api/status": status,
        "/api/status/{list}": status_list,
        "/api/tables/{namespace}/{table}": table,
        "/api/tables/{namespace}/{table}/{list}": table_list,
        "/api/history": history,
        "/runbook/{entry}": runbook,
        "/": show_page,
    }
    routes: dict[str, tuple[str, Handler]] = {path: ("GET", each) for path, each in shown.items()}
    routes[SQL_PATH] = ("POST", sql)
    routes |= IcebergRoutes(source.open_store, store_options or {}).routes()

    def counted(path: str, handle: Handler) -> Handler:
        async def answer(request: Request) -> Response:
            response = await handle(request)
            source.answered(path, response.status_code)
            return response

        return answer

    async def refuse(request: Request, exc: Exception) -> Response:
        response = await _refuse(request, exc)
        source.answered(OTHER_ROUTE, response.status_code)
        return response

    app = Starlette(
        routes=[
            Route(path, counted(path, _answered(entrance.behind(path, handle))), methods=[method])
            for path, (method, handle) in routes.items()
        ],
        exception_handlers={HTTPException: refuse},
        middleware=[Middleware(BoundedAnswers)],
    )
    # "/metrics/" is an unknown path like any other.
    app.router.redirect_slashes = False
    return app


def _answered(handle: Handler) -> Handler:
    """Answer a failure of ``handle`` with an id that is also in the log."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except TurnedAway as exc:
            return _turned_away(request.url.path, exc)
        except ClientDisconnect:
            return _turned_away(request.url.path, TurnedAway(*GONE))
        except Exception:
            error_id = uuid.uuid4().hex[:12]
            log.exception(
                "http request failed",
                path=request.url.path,
                error_id=error_id,
                runbook="http-failed",
            )
            failure = TurnedAway(500, "internal", f"internal error {error_id}; the log has more")
            return _turned_away(request.url.path, failure)

    return answer


def _turned_away(path: str, exc: TurnedAway) -> Response:
    """Return the response of a refusal in the form that the path's clients know."""
    if path.startswith(f"{ROOT}/"):
        kind = exc.code if exc.code.endswith("Exception") else ""
        response = iceberg_error(exc.status, exc.message, kind)
    else:
        response = _error(exc.status, exc.code, exc.message)
    response.headers.update(exc.headers)
    return response


async def _told(tell: Callable[[Request], Awaitable[bytes]], request: Request) -> Response:
    """Answer with the JSON of ``tell``, or with its error."""
    try:
        return _json_bytes(await tell(request), 200)
    except BadRequest as exc:
        return _error(400, "invalid", exc.message)
    except UnknownTable as exc:
        return _error(404, "not_found", exc.message)


async def _refuse(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    if request.url.path.startswith(f"{ROOT}/"):
        response = refusal(request, exc.status_code)
        response.headers.update(exc.headers or {})
        return response
    code = _ERROR_CODES.get(exc.status_code, "invalid")
    message = {
        404: "no such path; there are /, /health/live, /health/ready, /metrics, /api/status,"
        " /api/status/{tables,origins,followers,replications,namespaces}, /api/history,"
        " /api/tables/NAMESPACE/TABLE, .../partitions, .../files, /api/sql, /iceberg/v1/config",
        405: "only POST is answered here"
        if request.url.path == SQL_PATH
        else "only GET and HEAD are answered here",
    }.get(exc.status_code, exc.detail)
    response = _error(exc.status_code, code, message)
    response.headers.update(exc.headers or {})
    return response


def _error(status: int, code: str, message: str) -> Response:
    return _json({"code": code, "message": message}, status)


def _saturated(path: str) -> Response:
    under_way = QUERIES if path == SQL_PATH else MAX_ANSWERS
    message = f"{under_way} answers are under way; retry in a second"
    if path.startswith(f"{ROOT}/"):
        response = iceberg_error(503, message)
    else:
        response = _json({"code": "saturated", "message": message, "retry_after_s": 1}, 503)
    response.headers["Retry-After"] = "1"
    return response


def _json(body: object, status: int) -> Response:
    return _json_bytes(msgspec.json.encode(body), status)


def _json_bytes(body: bytes, status: int) -> Response:
    return Response(body, status, headers=_HEADERS, media_type="application/json")


class _TableRoutes:
    """Answers the routes of tables. On the loop.

    The view of a table is taken on the loop and encoded in a thread, because a table may have
    100,000 files. No request goes to the store, so that tables are shown while it is unreachable.
    """

    def __init__(self, source: StatusSource) -> None:
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
        asked, view = _page_request(request), self._view(request)
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


def _page_request(request: Request) -> PageRequest:
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
