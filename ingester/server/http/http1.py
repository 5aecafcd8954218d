"""What is spoken on a connection: HTTP/1.1, requests without bodies, one after another.

    bytes ─ a turn of the loop ─▶ a request ─ a turn of the loop ─▶ the application
                                     └ with a body, or of HTTP/2 ─▶ an error, and the end

Whoever asks for health, metrics or the page needs no more, and more is dear: frames of HTTP/2 that
ask for nothing (pings, settings, resets) and bodies in chunks of a byte are taken apart on the
event loop, thousands of them in one piece. A wish for another protocol (``Upgrade``) is left
unheard, as HTTP allows: the request is answered as it stands.

Law of this file: one connection is at work in a turn of the loop, so that the rest of the daemon
has the others, however many connections send whatever they like.

Source: RFC 9110 7.8 (Upgrade), 9.3.1 (a body of GET has no meaning); RFC 9113 10.5 (floods).
"""

from __future__ import annotations

import heapq
from typing import Any, cast

import h11
import msgspec
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Request
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr

READ_BYTES = 16 << 10
"""The bytes that are taken apart at a time: as many as the head of a request may have."""
LINES = 200
"""The lines that a head may have: thousands of short ones take 20 ms, in one piece."""
_END_OF_HEAD = b"\r\n\r\n"


class Turns:
    """Gives connections turns of the loop, one at a time; the next goes to who has had least.

    That is by addresses, so that a probe does not wait for a hundred connections of somebody else's
    (start-time fair queueing: a turn of an address begins when its last one ended, or now).
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, trio.Event]] = []
        self._ends: dict[str, int] = {}
        self._now = self._came = 0
        self._is_taken = False

    async def take(self, peer: str) -> None:
        """Return in a turn of the loop in which no other connection is at work."""
        begin = max(self._now, self._ends.get(peer, 0))
        self._ends[peer] = begin + 1
        self._came += 1
        turn = begin, self._came, trio.Event()
        if self._is_taken:
            heapq.heappush(self._waiting, turn)
            try:
                await turn[2].wait()
            except trio.Cancelled:
                self._give_up(turn)
                raise
        self._is_taken, self._now = True, begin
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._pass_on()

    def _give_up(self, turn: tuple[int, int, trio.Event]) -> None:
        if turn[2].is_set():
            self._pass_on()
        else:
            self._waiting.remove(turn)
            heapq.heapify(self._waiting)

    def _pass_on(self) -> None:
        if self._waiting:
            heapq.heappop(self._waiting)[2].set()
        else:
            self._is_taken = False
            self._ends.clear()


class Http1(TCPServer):
    """Speaks on one connection until it ends: hypercorn's, less all but HTTP/1.1."""

    def __init__(
        self, app: AppWrapper, config: Config, context: WorkerContext, stream: Any, turns: Turns
    ) -> None:
        super().__init__(app, config, context, cast("Any", {}), stream)
        self._turns = turns
        self._peer = ""
        self._is_over = False
        """Whether nothing more comes: no next request is waited for."""

    async def speak(self, state: dict[str, Any]) -> None:
        """Answer requests; TLS, where there is any, has shaken hands by now.

        Args:
            state: what each request finds in ``scope["state"]``.
        """
        stream: Any = self.stream
        is_sealed = isinstance(stream, trio.SSLStream)
        sock = (stream.transport_stream if is_sealed else stream).socket
        try:
            client, server = (
                parse_socket_addr(sock.family, name())
                for name in (sock.getpeername, sock.getsockname)
            )
            self._peer = "" if client is None else client[0]
            async with TaskGroup() as tasks:
                self._task_group = tasks
                # Not hypercorn's wrapper of it, which goes over to HTTP/2 when it is asked to.
                self.protocol = cast(
                    "Any",
                    _Requests(
                        self.app,
                        self.config,
                        cast("Any", self.context),
                        cast("Any", tasks),
                        ConnectionState(state),
                        is_sealed,
                        client,
                        server,
                        self.protocol_send,
                    ),
                )
                cast("Any", self.protocol).turns = self._turns
                await self.idle_task.restart(cast("Any", tasks), self._idle_timeout)
                await self._read_data()
                self._is_over = True
                await self.idle_task.stop()
        except OSError:
            pass  # the client has gone
        finally:
            await self._close()

    async def _close(self) -> None:
        # In one step. hypercorn ends the sending first, by which whoever sends meanwhile fails.
        await self.stream.aclose()

    async def _idle_timeout(self) -> None:
        # Else who has gone would have its place, and its descriptor, until the time is up.
        if not self._is_over:
            await super()._idle_timeout()

    async def _read_data(self) -> None:
        data = b"-"
        while data:
            try:
                data = bytes(await self.stream.receive_some(READ_BYTES))
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
            await self._turns.take(self._peer)
            await self.protocol.handle(RawData(data))
        await self.protocol.handle(Closed())


class _Requests(H11Protocol):
    """The requests of one connection."""

    turns: Turns
    _lines = 0
    """The lines of the head that is under way."""

    async def handle(self, event: Event) -> None:
        """Take in what has come, if no head in it is of too many lines."""
        if isinstance(event, RawData):
            whole, end, rest = event.data.rpartition(_END_OF_HEAD)
            lines = [head.count(b"\n") for head in whole.split(_END_OF_HEAD)] if end else [0]
            lines[0] += self._lines
            self._lines = rest.count(b"\n") + (0 if end else self._lines)
            if max(*lines, self._lines) > LINES:
                if self.stream is None:
                    await self._refuse(431, f"a request has {LINES} lines at most")
                else:  # an answer is under way
                    await self.send(Closed())
                return
        await super().handle(event)

    async def _check_protocol(self, event: h11.Request) -> None:
        """Change to no other protocol, whatever is asked for."""

    async def _create_stream(self, request: h11.Request) -> None:
        self._lines = 0  # its end may have come in pieces
        refusal = _refusal(request)
        if refusal is not None:
            await self._refuse(*refusal, tells=request.method != b"HEAD")
            return
        await self.turns.take("" if self.client is None else self.client[0])
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _refuse(self, status: int, message: str, *, tells: bool = True) -> None:
        """Answer with an error, and end the connection: what follows is not looked at.

        Args:
            tells: whether the answer has a body, which that to HEAD has not.
        """
        body = msgspec.json.encode({"code": "invalid", "message": message})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        await self._send_h11_event(h11.Response(status_code=status, headers=headers))
        if tells:
            await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())
        await self.send(Closed())


def _refusal(request: h11.Request) -> tuple[int, str] | None:
    """Return status and message for a request that no handler sees; None for all others."""
    if request.http_version not in (b"1.0", b"1.1"):
        return 505, "HTTP/1.1 is spoken here, and nothing newer"
    for name, value in request.headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0")):
            return 413, "requests have no body here: GET and HEAD are answered, which need none"
    return None
