"""Flight SQL with tokens: hidden tables do not exist, and FlightInfos cancel their queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.protobuf import bytes_field
from ingester.server.flight_sql.messages import encoded_handle, packed, unpacked
from ingester.sql.request import Statement
from tests.drivers.wire import put
from tests.server.auth.secured import Secured
from tests.server.flight_sql.raw import act, ask, cancel, command, info

CANCELLED, NOT_CANCELLABLE = 1, 3
ENDLESS = "SELECT * FROM range(1000000000000)"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A daemon with tokens and two tables, of which the callers may read one each."""
    secured = Secured.start(tmp_path_factory.mktemp("secured"))
    with secured.daemon:
        with secured.client("rw") as client:
            put(client, ("shop", "orders"), pa.record_batch({"n": [1]}))
        with secured.client("other") as client:
            put(client, ("other", "secret"), pa.record_batch({"n": [2]}))
        yield secured


def listed(client: fl.FlightClient) -> tuple[list[str], list[str]]:
    schemas = ask(client, "CommandGetDbSchemas")["db_schema_name"].to_pylist()
    return schemas, ask(client, "CommandGetTables")["table_name"].to_pylist()


def test_the_metadata_has_only_what_the_caller_may_read(secured: Secured) -> None:
    expected = {
        "reads": (["shop"], ["orders"]),
        "other": (["other"], ["secret"]),
        "writes": ([], []),
        "root": (["other", "shop"], ["secret", "orders"]),
    }
    for name, answer in expected.items():
        with secured.client(name) as client:
            assert listed(client) == answer, name
            keys = ask(client, "CommandGetPrimaryKeys", (3, "secret"))
            assert keys.num_rows == 0


def test_a_table_of_others_does_not_exist_in_any_call(secured: Secured) -> None:
    def refused(name: str, text: str) -> set[str]:
        handle = bytes_field(1, encoded_handle(Statement(text)))
        calls: list[Callable[[fl.FlightClient], object]] = [
            lambda client: info(client, text),
            lambda client: client.get_schema(command("CommandStatementQuery", (1, text))),
            lambda client: client.do_get(
                fl.Ticket(packed("TicketStatementQuery", handle))
            ).read_all(),
            lambda client: act(
                client,
                "CreatePreparedStatement",
                packed("ActionCreatePreparedStatementRequest", bytes_field(1, text)),
            ),
        ]
        found = set()
        with secured.client(name) as client:
            for call in calls:
                with pytest.raises(pa.ArrowInvalid) as error:
                    call(client)
                found.add(str(error.value).partition(". Detail")[0].split(": ", 1)[-1])
        return found

    there = refused("reads", "SELECT * FROM other.secret")
    missing = refused("reads", "SELECT * FROM other.nosuch")
    assert len(there) == 1
    assert {text.replace("secret", "nosuch") for text in there} == missing


def test_a_query_is_cancelled_by_its_flight_info(secured: Secured) -> None:
    with secured.client("reads") as client:
        told, other = info(client, ENDLESS), info(client, ENDLESS)
        assert cancel(client, told) == NOT_CANCELLABLE, "it does not run yet"
        reader = client.do_get(told.endpoints[0].ticket)
        reader.read_chunk()
        assert cancel(client, other) == NOT_CANCELLABLE
        reader.read_chunk()
        assert cancel(client, told) == CANCELLED
        with pytest.raises(pa.ArrowInvalid, match="the query was cancelled"):
            reader.read_all()
        assert cancel(client, told) == NOT_CANCELLABLE


def test_the_older_action_cancels_too(secured: Secured) -> None:
    with secured.client("reads") as client:
        told = info(client, ENDLESS)
        reader = client.do_get(told.endpoints[0].ticket)
        reader.read_chunk()
        body = packed("ActionCancelQueryRequest", bytes_field(1, told.serialize()))
        (result,) = act(client, "CancelQuery", body)
        assert unpacked(result).number(1) == CANCELLED
        with pytest.raises(pa.ArrowInvalid, match="the query was cancelled"):
            reader.read_all()
