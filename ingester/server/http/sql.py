"""``POST /api/sql``: the first rows of a read-only SQL query, as JSON.

    {"sql": "SELECT count(*) AS n FROM visits", "namespace": "shop"}

    {"columns": [{"name": "n", "type": "int64"}], "rows": [[2]], "truncated": false,
     "elapsed_ms": 7.2}

``truncated`` says that rows were left out (``MAX_ROWS``, ``MAX_BYTES``) or a value was cut; values
are those of ``sql_values``. An empty statement has an empty answer, which tells a client that it
has the right to ask.

A query blocks a thread of its own. It ends when its client disconnects or its token is revoked, and
after ``MAX_S``. A page of another site cannot ask: browsers send ``application/json`` across sites
only with a permission that is not given here, and say from which site they ask.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import aclosing
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import trio
from starlette.requests import Request

from ingester.errors import AccessDenied, BadRequest, ClientGone, IngesterError, Stopping, TooSlow
from ingester.server.http.entrance import GONE, TurnedAway, turned_away
from ingester.server.http.sql_values import JsonValues
from ingester.sql.engine import SqlAnswer, SqlCaller, SqlEngine
from ingester.sql.request import MAX_SQL_BYTES, Statement, checked

PATH = "/api/sql"
QUERIES = 4
"""Queries at a time; each occupies a thread."""
MAX_ROWS = 1_000
MAX_BYTES = 1 << 20
"""The size of an answer's columns and rows as JSON."""
MAX_S = 30.0
MAX_BODY_BYTES = 2 * MAX_SQL_BYTES
BODY_S = 10.0
_CELLS = 200
"""Values that are converted at a time, so that few are converted beyond ``MAX_BYTES``."""
_MAX_TYPE = 200


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sql: str
    namespace: str | None = None


class _Column(msgspec.Struct, frozen=True):
    name: str
    type: str


class _Answer(msgspec.Struct, frozen=True):
    columns: list[_Column] = []
    rows: list[msgspec.Raw] = []
    truncated: bool = False
    elapsed_ms: float = 0.0


_decode = msgspec.json.Decoder(_Asked).decode
_encode = msgspec.json.encode


class SqlRoute:
    """Answers the route. On the loop.

    Args:
        open_sql: returns the daemon's engine, or why it answers no queries now.
    """

    def __init__(self, open_sql: Callable[[], SqlEngine | str]) -> None:
        self._open = open_sql
        self._threads = trio.CapacityLimiter(QUERIES)

    async def answer(self, request: Request) -> bytes:
        """Return the JSON of an answer. Raises :class:`TurnedAway`."""
        refuse_other_sites(request)
        try:
            caller = request.state.permit.caller
            if not caller.may_somewhere("read"):
                raise AccessDenied(f"token {caller.token_id} ({caller.name}) may read no namespace")
            statement = await _statement(request)
            engine = self._open()
            if isinstance(engine, str):
                raise Stopping(f"no queries are answered now: {engine}")
            if not statement.text.strip():
                return _encode(_Answer())
            return await self._run(request, engine, statement)
        except IngesterError as exc:
            raise turned_away(exc) from exc

    async def _run(self, request: Request, engine: SqlEngine, statement: Statement) -> bytes:
        """Run a query in a thread until its client is gone or ``MAX_S`` are over."""
        permit, sees = request.state.permit, request.state.sees
        over, limit = threading.Event(), trio.move_on_after(MAX_S)

        def check_wanted() -> None:
            permit.renew()
            if over.is_set():
                raise ClientGone("nobody waits for the answer")

        async def watch() -> None:
            try:
                with limit:
                    await _disconnected(request)
            finally:
                over.set()

        caller = SqlCaller(
            may_read=lambda namespace: sees is None or sees(namespace),
            check_wanted=check_wanted,
            name=permit.caller.name,
            authorization=permit.authorization,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            # The thread is waited for: it ends soon after the watch.
            ended = await trio.to_thread.run_sync(
                _tried, engine, statement, caller, limiter=self._threads
            )
            nursery.cancel_scope.cancel()
        if isinstance(ended, bytes):
            return ended
        if limit.cancelled_caught:
            raise TooSlow(f"the query took longer than {MAX_S:.0f} s") from ended
        if isinstance(ended, ClientGone):
            raise TurnedAway(*GONE) from ended
        raise ended


def _tried(engine: SqlEngine, statement: Statement, caller: SqlCaller) -> bytes | Exception:
    """Return the answer or the error, which a nursery would wrap."""
    try:
        return answer_of(engine, statement, caller)
    except Exception as exc:
        return exc


def answer_of(engine: SqlEngine, statement: Statement, caller: SqlCaller) -> bytes:
    """Run a query and return the JSON of its answer. Blocks.

    Raises:
        as :meth:`SqlEngine.run` and the iteration of its answer.
    """
    began = time.monotonic()
    answer = engine.run(statement, caller)
    try:
        columns = [_Column(field.name, _type_name(field.type)) for field in answer.schema]
        room = MAX_BYTES - len(_encode(columns))
        if room < 0:
            raise BadRequest(f"the names of {len(columns)} columns exceed {MAX_BYTES} B")
        rows, truncated = _rows(answer, room)
    finally:
        answer.close()
    elapsed_ms = round((time.monotonic() - began) * 1000, 3)
    return _encode(_Answer(columns, rows, truncated, elapsed_ms))


def _rows(answer: SqlAnswer, room: int) -> tuple[list[msgspec.Raw], bool]:
    """Return the rows that fit into ``room`` bytes, and whether anything is missing."""
    rows: list[msgspec.Raw] = []
    values = JsonValues()
    step = max(1, _CELLS // max(1, len(answer.schema)))
    for batch in answer:
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            for row in zip(*map(values.of, part.columns), strict=True):
                encoded = _encode(row)
                room -= len(encoded) + 1
                if len(rows) == MAX_ROWS or room < 0:
                    return rows, True
                rows.append(msgspec.Raw(encoded))
    return rows, values.cut


def _type_name(kind: pa.DataType) -> str:
    name = str(kind)
    return name if len(name) <= _MAX_TYPE else f"{name[:_MAX_TYPE]}…"


def refuse_other_sites(request: Request) -> None:
    """Refuse a request that a page of another site makes. Raises :class:`TurnedAway`."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    # Without TLS and not on this machine, browsers send only Origin.
    if site is None and origin is not None:
        site = "same-origin" if urlsplit(origin).netloc == request.headers.get("host") else "other"
    if site not in (None, "same-origin", "none"):
        raise TurnedAway(403, "forbidden", "a page of another site may not ask")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise TurnedAway(415, "invalid", "the content type must be application/json")


async def _statement(request: Request) -> Statement:
    body = bytearray()
    with trio.move_on_after(BODY_S) as scope:
        async with aclosing(request.stream()) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise TurnedAway(413, "invalid", f"the body has more than {MAX_BODY_BYTES} B")
    if scope.cancelled_caught:
        raise TurnedAway(408, "timeout", f"the body did not arrive within {BODY_S:.0f} s")
    try:
        asked = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise BadRequest(f"body: {exc}") from exc
    return checked(Statement(asked.sql, asked.namespace, first_rows=MAX_ROWS + 1))


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
