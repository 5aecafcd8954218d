"""Every error as it is sent over gRPC, for clients in any language."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.errors import ERRORS, BadRequest, IngesterError, kind_of
from ingester.server.flight.refusals import TRAILER, no_flight_errors, refusals
from tests.fuzz.raw_flight import (
    Answered,
    call,
    field,
    flight_data,
    ipc_stream,
    path_descriptor,
)

SENTENCE = "column 'v': table has double, batch has \"utf8\" (50 %, für immer)"
STATUSES = {
    "INVALID_ARGUMENT": "3",
    "DEADLINE_EXCEEDED": "4",
    "NOT_FOUND": "5",
    "PERMISSION_DENIED": "7",
    "UNIMPLEMENTED": "12",
    "INTERNAL": "13",
    "UNAVAILABLE": "14",
    "UNAUTHENTICATED": "16",
}
UNKNOWN = "2"
FLIGHTS_OWN = {"available", "TimedOut", "Internal", "authenticated", "authorized"}
ARROWS_OWN = {"invalid", "not_found", "unimplemented"}


class Refusing(fl.FlightServerBase):  # type: ignore[misc]
    """A server that refuses every call with the error named by the call's argument."""

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._refuse(context, descriptor.path[0])

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._refuse(context, descriptor.path[0])

    def do_get(self, context: Any, ticket: Any) -> None:
        self._refuse(context, ticket.ticket)

    def do_action(self, context: Any, action: Any) -> None:
        self._refuse(context, action.type.encode())

    def get_flight_info(self, context: Any, descriptor: Any) -> None:
        self._refuse(context, descriptor.path[0])

    def get_schema(self, context: Any, descriptor: Any) -> None:
        with no_flight_errors(context):
            self._refuse(context, descriptor.path[0])

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        self._refuse(context, criteria)
        yield

    def _refuse(self, context: Any, name: bytes) -> None:
        (error,) = (each for each in ERRORS if each.__name__.encode() == name)
        with refusals(context):
            raise error(SENTENCE, retry_after_s=1.5, details={"answered": 3})


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    """The address of such a server, with the daemon's traceback settings."""
    with pytest.MonkeyPatch.context() as patch, Refusing("grpc://127.0.0.1:0") as server:
        patch.setattr(sys, "tracebacklimit", 0, raising=False)
        yield f"grpc://127.0.0.1:{server.port}"


def _arguments(method: str, name: str) -> list[bytes]:
    if method in ("DoPut", "DoExchange"):
        ((header, body), *_) = ipc_stream(pa.record_batch({"a": [1]}))
        return [flight_data(header, body, path_descriptor(name, "t"))]
    if method in ("GetFlightInfo", "GetSchema"):
        return [path_descriptor(name, "t")]
    return [field(1, name.encode())]


METHODS = ["DoPut", "DoExchange", "DoGet", "DoAction", "GetFlightInfo", "GetSchema", "ListFlights"]


def _refused(server: str, method: str, error: type[IngesterError]) -> Answered:
    return call(server, method, _arguments(method, error.__name__))


@pytest.mark.parametrize("method", METHODS)
def test_every_refusal_of_every_method_has_its_status_its_sentence_and_its_json(
    refusing: str, method: str
) -> None:
    for error in ERRORS:
        kind, answered = kind_of(error("")), _refused(refusing, method, error)
        flight_errors = kind.code not in ARROWS_OWN
        expected = {"code": kind.code, "message": SENTENCE, "answered": 3, "retry_after_s": 1.5}
        assert json.loads(answered.binary(TRAILER)) == expected
        assert answered.binary("x-arrow-status-message-bin").decode() == SENTENCE
        # pyarrow cannot raise a Flight error from GetSchema.
        hidden = method == "GetSchema" and flight_errors
        assert answered.status == (UNKNOWN if hidden else STATUSES[kind.status])
        assert ("grpc-status-details-bin" in answered.trailers) == flight_errors
        if flight_errors:
            assert json.loads(answered.binary("grpc-status-details-bin")) == expected


@pytest.mark.parametrize("method", METHODS)
def test_what_arrow_adds_to_a_sentence_is_the_code_and_nothing_of_python(
    refusing: str, method: str
) -> None:
    """Regression: except for Flight errors, the class name and the sentence were repeated."""
    for error in ERRORS:
        code = kind_of(error("")).code
        message = _refused(refusing, method, error).message
        assert message.startswith(SENTENCE + ". Detail: ")
        added = message.removeprefix(SENTENCE + ". Detail: ").removeprefix("Python exception: ")
        if code in ARROWS_OWN or method == "GetSchema":
            assert added == code + "\n"
        else:
            assert added in {
                "Unavailable",
                "TimedOut",
                "Internal",
                "Unauthenticated",
                "Unauthorized",
            }


def test_the_trailers_are_what_a_client_of_pyarrow_finds_by_a_middleware(refusing: str) -> None:
    found: dict[str, list[Any]] = {}

    class Trailers(fl.ClientMiddleware):  # type: ignore[misc]
        def received_headers(self, headers: dict[str, list[Any]]) -> None:
            found.update(headers)

    class Factory(fl.ClientMiddlewareFactory):  # type: ignore[misc]
        def start_call(self, info: Any) -> Trailers:
            return Trailers()

    with fl.FlightClient(refusing, middleware=[Factory()]) as client:
        with pytest.raises(pa.ArrowInvalid, match="table has double"):
            client.do_get(fl.Ticket(BadRequest.__name__.encode()))
        assert json.loads(found[TRAILER][0])["code"] == "invalid"


@pytest.mark.parametrize("method", [*METHODS, "Handshake", "PollFlightInfo", "Nothing"])
def test_what_is_not_protobuf_is_answered_by_grpc_with_no_json(refusing: str, method: str) -> None:
    """The gRPC library answers malformed messages itself; the daemon does not see them."""
    answered = call(refusing, method, [b"\x0f\xff"])
    status, text = {
        "DoPut": (UNKNOWN, "Stream finished before first message sent"),
        "DoExchange": (UNKNOWN, "Stream finished before first message sent"),
        "Handshake": (STATUSES["UNIMPLEMENTED"], "This service does not have an authentication"),
        "Nothing": (STATUSES["UNIMPLEMENTED"], ""),
    }.get(method, (STATUSES["INTERNAL"], ""))
    assert answered.status == status
    assert answered.message.startswith(text) if text else not answered.message
    assert TRAILER not in answered.trailers
