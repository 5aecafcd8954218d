"""``POST /api/sql``: the first rows of a read-only SQL query, as texts in JSON, for the page.

    {"sql": "SELECT count(*) AS n FROM visits", "namespace": "shop"}

    {"columns": [{"name": "n", "type": "int64"}], "rows": [["2"]], "truncated": false}

Values are texts as :func:`ingester.value_texts.table_cells` makes them, or null. ``truncated`` says
that rows were left out: beyond ``MAX_ROWS`` or ``MAX_BYTES``. Of a value beyond ``MAX_VALUE_BYTES``
only the size is told.

A query blocks a thread of its own. It ends when its client disconnects or its token is revoked. A
page of another site cannot ask: browsers send ``application/json`` across sites only with a
permission that is not given here, and say from which site they ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import aclosing, closing
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import trio
from starlette.requests import Request

from ingester.errors import AccessDenied, BadRequest, ClientGone, IngesterError, Stopping
from ingester.server.http.entrance import GONE, TurnedAway, turned_away
from ingester.sql.engine import SqlAnswer, SqlCaller, SqlEngine
from ingester.sql.request import MAX_SQL_BYTES, Statement, checked
from ingester.value_texts import table_cells

PATH = "/api/sql"
QUERIES = 4
"""Queries at a time; each occupies a thread."""
MAX_ROWS = 1_000
MAX_BYTES = 1 << 20
"""The size of an answer's columns and rows as JSON."""
MAX_VALUE_BYTES = 64 << 10
"""A value's size as Arrow data."""
MAX_BODY_BYTES = 2 * MAX_SQL_BYTES
BODY_S = 10.0
_CELLS = 200
"""Values that are converted at a time, so that few are converted beyond ``MAX_BYTES``."""


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
            return await self._run(request, engine, statement)
        except IngesterError as exc:
            raise turned_away(exc) from exc

    async def _run(self, request: Request, engine: SqlEngine, statement: Statement) -> bytes:
        """Run a query in a thread until its client is gone."""
        permit, sees, over = request.state.permit, request.state.sees, threading.Event()

        def check_wanted() -> None:
            permit.renew()
            if over.is_set():
                raise ClientGone("nobody waits for the answer")

        async def watch() -> None:
            try:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
            finally:
                over.set()

        caller = SqlCaller(
            may_read=lambda namespace: sees is None or sees(namespace),
            check_wanted=check_wanted,
            authorization=permit.authorization,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            # The thread is waited for: it ends soon after the watch.
            ended = await trio.to_thread.run_sync(
                _answer_of, engine, statement, caller, limiter=self._threads
            )
            nursery.cancel_scope.cancel()
        if isinstance(ended, bytes):
            return ended
        if isinstance(ended, ClientGone):
            raise TurnedAway(*GONE) from ended
        raise ended


def _answer_of(engine: SqlEngine, statement: Statement, caller: SqlCaller) -> bytes | Exception:
    """Return the JSON of a query's answer, or the error, which a nursery would wrap. Blocks."""
    try:
        with closing(engine.run(statement, caller)) as answer:
            columns = [_Column(field.name, str(field.type)) for field in answer.schema]
            room = MAX_BYTES - len(_encode(columns))
            if room < 0:
                raise BadRequest(f"names and types of {len(columns)} columns exceed {MAX_BYTES} B")
            return _encode(_Answer(columns, *_rows(answer, room)))
    except Exception as exc:
        return exc


def _rows(answer: SqlAnswer, room: int) -> tuple[list[msgspec.Raw], bool]:
    """Return the rows that fit into ``room`` bytes, and whether any are missing."""
    rows: list[msgspec.Raw] = []
    is_cut = False
    step = max(1, _CELLS // max(1, len(answer.schema)))
    # To the end, which is near: a dropped answer counts as cancelled.
    for batch in answer:
        for start in range(0, batch.num_rows, step):
            if is_cut:
                break
            for row in zip(*map(_texts, batch.slice(start, step).columns), strict=True):
                encoded = _encode(row)
                room -= len(encoded) + 1
                is_cut = is_cut or len(rows) == MAX_ROWS or room < 0
                if not is_cut:
                    rows.append(msgspec.Raw(encoded))
    return rows, is_cut


def _texts(column: pa.Array) -> list[str | None]:
    """Return the texts of values; of a long one its size, as a value may have a gigabyte."""
    if isinstance(column, pa.DictionaryArray) or column.nbytes <= MAX_VALUE_BYTES:
        return table_cells(column)
    texts: list[str | None] = []
    for at in range(len(column)):
        value = column.slice(at, 1)
        is_long = value.nbytes > MAX_VALUE_BYTES
        texts += [f"({value.nbytes:,} bytes)"] if is_long else table_cells(value)
    return texts


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
