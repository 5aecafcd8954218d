"""Flight SQL with tokens: hidden tables do not exist; a query is cancelled by its caller only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.protobuf import bytes_field
from ingester.server.flight_sql.messages import Handle, handle_of, packed, unpacked
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
        handle = bytes_field(1, Handle(Statement(text)).encoded())
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


def test_a_query_is_cancelled_by_its_caller_and_by_an_admin_of_everything(
    secured: Secured,
) -> None:
    for name in ("reads", "root"):
        with (
            secured.client("reads") as client,
            secured.client(name) as other,
            secured.client("other") as stranger,
        ):
            told = info(client, ENDLESS)
            assert cancel(client, told) == NOT_CANCELLABLE, "it does not run yet"
            reader = client.do_get(told.endpoints[0].ticket)
            reader.read_chunk()
            assert cancel(stranger, told) == NOT_CANCELLABLE
            reader.read_chunk()
            assert cancel(other, told) == CANCELLED
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


def test_the_ticket_of_another_caller_runs_under_another_id(secured: Secured) -> None:
    with secured.client("reads") as client, secured.client("root") as root:
        told = info(client, "SELECT n FROM shop.orders")
        ticket = told.endpoints[0].ticket
        announced = handle_of(unpacked(ticket.ticket).blob(1)).query_id
        own, others = (each.do_get(ticket).read_all() for each in (client, root))
    assert own.to_pylist() == others.to_pylist() == [{"n": 1}]
    assert own.schema.metadata[b"query_id"] == told.schema.metadata[b"query_id"]
    assert others.schema.metadata[b"query_id"].decode() != announced


def test_columns_that_change_before_the_rows_are_read_make_a_retryable_error(
    secured: Secured,
) -> None:
    with secured.client("rw") as client:
        put(client, ("shop", "changes"), pa.record_batch({"n": [1]}))
        told = info(client, "SELECT * FROM shop.changes")
        put(client, ("shop", "changes"), pa.record_batch({"n": [2], "s": ["x"]}))
        with pytest.raises(fl.FlightUnavailableError, match="columns of the answer have changed"):
            client.do_get(told.endpoints[0].ticket).read_all()
        again = client.do_get(
            info(client, "SELECT * FROM shop.changes ORDER BY n").endpoints[0].ticket
        )
        assert again.read_all().to_pylist() == [{"n": 1, "s": None}, {"n": 2, "s": "x"}]
