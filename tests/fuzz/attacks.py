"""The attacks on a running daemon: batches, whole calls, and requests to the status server.

An attack is a strategy of inputs and a function that sends one input. The caller decides how
many to send, and checks the daemon.
"""

from __future__ import annotations

import socket
import time
import urllib.parse
import warnings
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import seeds
from tests.fuzz.attacked import Attacked
from tests.fuzz.mutations import mutated
from tests.fuzz.raw_flight import command_descriptor, field, flight_data, path_descriptor

TABLES = 4
HTTP_WITHIN_S = 20.0
IDLE_S = 0.3

REQUESTS = [
    b"GET /health/ready?for=write HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /api/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 60_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    b"Connection: Upgrade, HTTP2-Settings\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"BREW /%00%ff%2e%2e/../..//etc HTTP/1.1\r\nHost: \xff\r\n\r\n",
    b"GET / HTTP/0.9\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\n" + b"A: b\r\n" * 3_000 + b"\r\n",
]

_table = path_descriptor("attacked", "calls")
CALLS = {
    "DoPut": [flight_data(seeds.ipc_messages()[0][0][0], descriptor=_table, metadata=b"{}")],
    "DoGet": [field(1, ticket) for ticket in seeds.TICKETS],
    "DoAction": [
        field(1, name) + field(2, body)
        for name in (b"describe_table", b"create_table", b"origins", b"status", b"checkpoint_put")
        for body in seeds.BODIES[1:]
    ],
    "GetFlightInfo": [_table, *(command_descriptor(ticket) for ticket in seeds.TICKETS)],
    "GetSchema": [_table, command_descriptor(seeds.TICKETS[0])],
    "ListFlights": [b"", field(1, b"x")],
    "ListActions": [b""],
    "Handshake": [b"", field(2, b"x")],
    "DoExchange": [flight_data(b"", descriptor=_table)],
    "PollFlightInfo": [_table],
    "NoSuchMethod": [b""],
}


@st.composite
def _streams(draw: st.DrawFn) -> tuple[int, list[tuple[bytes, bytes]]]:
    """A stream in which one message's header, body or both are changed."""
    messages = list(draw(st.sampled_from(seeds.ipc_messages())))
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(messages) - 1))
        header, body = messages[at]
        where = draw(st.sampled_from(["header", "body", "repeat", "drop"]))
        if where == "header":
            header = draw(mutated([header]))
        elif where == "body" and body:
            body = draw(mutated([body]))
        elif where == "repeat":
            messages.insert(draw(st.integers(0, len(messages))), (header, body))
        messages[at] = header, body
        if where == "drop" and len(messages) > 1:
            del messages[at]
    return draw(st.integers(1, TABLES)), messages


@st.composite
def _calls(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    method = draw(st.sampled_from(sorted(CALLS)))
    return method, draw(st.lists(mutated(CALLS[method]), max_size=2))


def _send_batches(attacked: Attacked, drawn: Any) -> None:
    number, messages = drawn
    attacked.put(messages, table=f"mutated{number}")


def _send_call(attacked: Attacked, drawn: Any) -> None:
    method, frames = drawn
    attacked.attempts += 1
    attacked.send(method, frames)


def send_http(attacked: Attacked, request: bytes) -> bytes:
    """Return the start of the answer; empty if the connection was closed without one."""
    attacked.attempts += 1
    address = urllib.parse.urlsplit(attacked.daemon.http)
    where = (address.hostname, address.port)
    answer = b""
    until = time.monotonic() + HTTP_WITHIN_S
    with socket.create_connection(where, timeout=HTTP_WITHIN_S) as sock:
        try:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(65536):
                answer = (answer + piece)[:65536]
                assert time.monotonic() < until, "the answer does not end"
                sock.settimeout(IDLE_S)
        except TimeoutError:
            assert answer, "no answer"  # after an answer the connection may stay idle
        except OSError:
            pass  # the server closed the connection on an invalid request
    assert not answer or answer.startswith((b"HTTP/1.", b"\0\0")), answer[:200]
    assert b"Traceback" not in answer
    assert not answer.startswith(b"HTTP/1.1 500"), answer[:500]
    return answer


def _send_http(attacked: Attacked, drawn: Any) -> None:
    send_http(attacked, drawn)


Send = Callable[[Attacked, Any], None]
ATTACKS: dict[str, tuple[st.SearchStrategy[Any], Send]] = {
    "daemon-batches": (_streams(), _send_batches),
    "daemon-calls": (_calls(), _send_call),
    "daemon-http": (mutated(REQUESTS), _send_http),
}


def attack(attacked: Attacked, name: str, examples: int, until: float | None = None) -> None:
    """Send inputs of an attack; raise with the smallest that gets a wrong answer.

    Without a deadline of the monotonic clock, the inputs are the same on every run.
    """
    inputs, send = ATTACKS[name]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=until is None,
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def attempt(drawn: Any) -> None:
        if until is None or time.monotonic() < until:
            send(attacked, drawn)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Generating overly large repr")
        attempt()
