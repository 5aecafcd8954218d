"""Every request is in the table of required permissions, and is refused accordingly.

The tests walk all Flight methods, types of a write's command, scopes of a ticket, actions and
routes. A new one without an entry in the table fails here, and the daemon refuses it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.protobuf import bytes_field
from ingester.query.ticket import Ticket
from ingester.server.auth.rights import NEEDS
from ingester.server.flight.actions import ACTIONS
from ingester.server.flight.server import IngesterServer
from ingester.server.flight_sql.dispatch import SQL_ACTIONS
from ingester.server.flight_sql.messages import encoded_handle, packed
from ingester.server.http.app import create_app
from ingester.sql.request import Statement
from tests.drivers.wire import ARROW_AND_FLIGHT, Stream, act, command, extra, numbers, put
from tests.server.auth.secured import Secured
from tests.server.http.serving import TurnableSource

METHODS = {
    "do_put": "put",
    "do_get": "get",
    "do_action": "action",
    "do_exchange": "exchange",
    "get_flight_info": "info",
    "get_schema": "schema",
    "list_flights": "list_flights",
    "list_actions": "list_actions",
}
HERE = ("shop", "t")
REFUSALS = (fl.FlightUnauthenticatedError, fl.FlightUnauthorizedError)
Call = Callable[[fl.FlightClient], object]


def test_every_method_of_flight_is_ours_and_in_the_table() -> None:
    base = {name for name in vars(fl.FlightServerBase) if re.match(r"do_|get_|list_", name)}
    assert base == set(METHODS)
    assert base <= set(vars(IngesterServer)), "pyarrow would answer the others without asking"
    assert {key.split()[0] for key in NEEDS} == {*METHODS.values(), "http"}


class _Handshake(fl.ClientAuthHandler):  # type: ignore[misc]
    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        outgoing.write(b"basic")
        incoming.read()

    def get_token(self) -> bytes:
        return b"token"


def test_flights_own_handshake_lets_nobody_in(secured: Secured) -> None:
    with secured.client(None) as client:
        with pytest.raises((OSError, *ARROW_AND_FLIGHT)):
            client.authenticate(_Handshake())
        assert refusal(CALLS["list_flights"], client) == "unauthenticated"


def test_every_scope_action_and_route_is_in_the_table_and_nothing_else() -> None:
    scopes = get_args(next(f.type for f in msgspec.structs.fields(Ticket) if f.name == "scope"))
    routes = [route.path for route in create_app(TurnableSource()).routes]  # type: ignore[attr-defined]
    walked = {
        *(f"get {scope}" for scope in (*scopes, "sql")),
        *(f"action {name}" for name in (*ACTIONS, *SQL_ACTIONS)),
        *(f"http {path}" for path in routes),
    }
    assert walked == {key for key in NEEDS if key.split()[0] in ("get", "action", "http")}


def test_every_type_of_a_writes_command_is_in_the_table(secured: Secured) -> None:
    with secured.client("rw") as client, pytest.raises(pa.ArrowInvalid) as refused:
        send(client, command(type="?", namespace="shop", table="t"))
    told = re.search(r"is not one of ([\w, ]+)", str(refused.value))
    assert told is not None
    types = {f"put {kind}" for kind in told[1].split(", ")}
    assert types | {"put sql"} == {key for key in NEEDS if key.startswith("put ")}


def send(client: fl.FlightClient, descriptor: fl.FlightDescriptor) -> None:
    """Write one batch to the descriptor; raises the error that ends the call."""
    with Stream(client, descriptor, numbers(0, 1).schema) as stream:
        try:
            stream.write(numbers(0, 1))
        except OSError:
            stream.close()
            raise


def bind(client: fl.FlightClient, descriptor: fl.FlightDescriptor) -> None:
    """Bind one row of parameters."""
    with Stream(client, descriptor, numbers(0, 1).schema) as stream:
        stream.send(numbers(0, 1))
        stream.writer.done_writing()
        stream.reader.read()


def run(client: fl.FlightClient, action: fl.Action) -> None:
    """Run an action to its end."""
    list(client.do_action(action))


def get(client: fl.FlightClient, ticket: fl.Ticket) -> None:
    """Read an answer to its end."""
    client.do_get(ticket).read_all()


def filled(kind: Any) -> Any:
    """A value of a type; a struct has its required fields only."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return {field.encode_name: filled(field.type) for field in fields if field.required}
    inspected = msgspec.inspect.type_info(kind)
    if isinstance(inspected, msgspec.inspect.LiteralType):
        return inspected.values[0]
    if isinstance(inspected, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        return 1
    return "x" if isinstance(inspected, msgspec.inspect.StrType) else {}


def calls() -> dict[str, Call]:
    """One call for each Flight entry of the table, on ``shop/t`` where it takes a table."""
    path, namespace, table = fl.FlightDescriptor.for_path(*HERE), *HERE
    found: dict[str, Call] = {
        "exchange": lambda client: client.do_exchange(path)[1].read_chunk(),
        "info": lambda client: client.get_flight_info(path),
        "schema": lambda client: client.get_schema(path),
        "list_flights": lambda client: list(client.list_flights()),
        "list_actions": lambda client: client.list_actions(),
    }
    more: dict[str, dict[str, Any]] = {
        "sync": {"origin": "o", "sequence": 1, "columns": [{"role": "new_pk", "name": "i"}]},
        "copy": {"copy": "c", "primary_key": []},
    }
    for kind in ("write", "delete", "sync", "copy"):
        sent = command(type=kind, namespace=namespace, table=table, **more.get(kind, {}))
        found[f"put {kind}"] = partial(send, descriptor=sent)
    for scope in ("all", "version", "buffered", "live"):
        ticket: dict[str, Any] = {"namespace": namespace, "table": table, "scope": scope}
        ticket |= {"version": 1} if scope == "version" else {}
        ticket |= {"wait_s": 0} if scope == "live" else {}
        found[f"get {scope}"] = partial(get, ticket=fl.Ticket(json.dumps(ticket).encode()))
    for name, action in ACTIONS.items():
        body = filled(action.body)
        fields = {field.name for field in msgspec.structs.fields(action.body)}
        body |= {"namespace": namespace} if "namespace" in fields else {}
        body |= {"table": table} if "table" in fields else {}
        body |= {"list": "tables"} if "list" in fields else {}
        body |= {"undo": True} if name == "drain" else {}  # other tests use the daemon
        found[f"action {name}"] = partial(act, name=name, **body)
    return found | sql_calls()


def sql_calls() -> dict[str, Call]:
    """One call for each entry of Flight SQL."""
    handle = bytes_field(1, encoded_handle(Statement("SELECT 1")))
    asked = fl.FlightDescriptor.for_command(packed("CommandPreparedStatementQuery", handle))
    ticket = fl.Ticket(packed("TicketStatementQuery", handle))
    found: dict[str, Call] = {
        "info sql": lambda client: client.get_flight_info(asked),
        "schema sql": lambda client: client.get_schema(asked),
        "get sql": partial(get, ticket=ticket),
        "put sql": partial(bind, descriptor=asked),
    }
    for name in SQL_ACTIONS:
        action = fl.Action(name, packed(f"Action{name}Request"))
        found[f"action {name}"] = partial(run, action=action)
    return found


CALLS = calls()


OF_THE_DAEMON = {"action drain", "action log_level"}
"""Actions on the whole daemon, which need more than the permission for one namespace."""


def refusal(call: Call, client: fl.FlightClient) -> str | None:
    """The code of a permission error; None if the call was permitted."""
    try:
        call(client)
    except REFUSALS as exc:
        return str(extra(exc)["code"])
    except (*ARROW_AND_FLIGHT, OSError) as exc:
        # pyarrow cannot raise a Flight error from GetSchema. Any other error means that the request
        # was permitted and then found invalid.
        found = re.search("Detail: (Unauthenticated|Python exception: forbidden)", str(exc))
        return found[1].split()[-1].lower() if found else None
    return None


def test_the_walk_has_a_call_for_each_need_of_flight() -> None:
    assert set(CALLS) == {key for key in NEEDS if not key.startswith("http ")}


@pytest.mark.parametrize("asked", CALLS)
def test_a_call_is_refused_without_its_token_and_elsewhere(secured: Secured, asked: str) -> None:
    need, call = NEEDS[asked], CALLS[asked]
    with secured.client("rw") as client:
        put(client, HERE, numbers(0, 1))
    with secured.client(None) as client:
        assert refusal(call, client) == "unauthenticated"
    with secured.client("other") as client:
        elsewhere = refusal(call, client)
    nothing_named = ("action store", "action status", "action status_list", "list_flights")
    names_it = asked not in (*nothing_named, "list_actions", *sql_calls())
    assert elsewhere == ("forbidden" if names_it and asked != "exchange" else None)
    lacking = {"read": "writes", "write": "reads", "admin": "rw"}.get(need.right or "")
    if lacking is not None and asked not in sql_calls():
        with secured.client(lacking) as client:
            assert refusal(call, client) == "forbidden"
    if asked == "action followers":
        return  # after a start, this action waits six seconds for followers
    for name in ("root",) if asked in OF_THE_DAEMON else ("chief", "root"):
        with secured.client(name) as client:
            assert refusal(call, client) is None, name


ROUTES = [key for key in NEEDS if key.startswith("http ")]
SQL = "http /api/sql"  # see tests/server/http/test_sql.py
CATALOGUE = [key for key in ROUTES if "/iceberg/" in key]


@pytest.mark.parametrize("asked", [key for key in ROUTES if key not in (*CATALOGUE, SQL)])
def test_a_route_is_refused_without_a_token(secured: Secured, asked: str) -> None:
    path = asked.removeprefix("http ")
    of_a_table = "{table}" in path
    path = path.replace("{list}", "files" if of_a_table else "tables")
    path = path.format(namespace="shop", table="t", entry="disk-full")
    if of_a_table:
        with secured.client("rw") as client:
            put(client, HERE, numbers(0, 1))
    status, body = secured.http(path)
    if NEEDS[asked].of == "open":
        assert status == 200
        return
    assert (status, body["code"]) == (401, "unauthenticated")
    expected = 403 if NEEDS[asked].of == "namespace" and not of_a_table else 200
    assert secured.http(path, "rw")[0] == expected
    assert secured.http(path, "root")[0] == 200
    if of_a_table:
        for name, where in (
            ("writes", path),
            ("other", path),
            ("other", path.replace("shop/t", "shop/u")),
        ):
            assert secured.http(where, name)[0] == 403, "it says nothing of what there is"


@pytest.mark.parametrize("asked", CATALOGUE)
def test_a_route_of_the_iceberg_catalogue_is_refused_without_its_right(
    secured: Secured, asked: str
) -> None:
    with secured.client("rw") as client:
        put(client, HERE, numbers(0, 1))
    method = "POST" if asked.endswith("/metrics") else "GET"
    path = asked.removeprefix("http ").format(namespace="shop", table="t")

    def answer(name: str | None) -> tuple[int, str]:
        status, body = secured.http(path, name, method)
        return status, body["error"]["type"] if status >= 400 else ""

    assert answer(None) == (401, "NotAuthorizedException")
    lacking = "" if NEEDS[asked].of != "namespace" else "ForbiddenException"
    for name in ("writes", "other"):
        assert answer(name) == (403 if lacking else 200, lacking)
    for name in ("reads", "chief", "root"):
        assert answer(name)[1] in ("", "NoSuchTableException")
