"""Isolation of tenants: neither can read the other's data or names, or interfere with it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow.flight as fl
import pytest

from tests.drivers.wire import Stream, Table, act, extra, numbers, persist, put, writing
from tests.server.auth.secured import Secured

MINE, THEIRS = ("shop", "mine"), ("other", "theirs")
TOLD = re.compile("shop|topic-0")


@pytest.fixture
def tenants(secured: Secured) -> Iterator[tuple[fl.FlightClient, fl.FlightClient]]:
    """Connections of the tenants ``shop`` and ``other``, each with a table."""
    with secured.client("rw") as ours, secured.client("other") as theirs:
        put(ours, MINE, numbers(0, 1), origin="topic-0", metadata=[{"sequence": 1}])
        put(theirs, THEIRS, numbers(0, 1), origin="topic-9", metadata=[{"sequence": 1}])
        yield ours, theirs


def test_what_is_told_of_all_namespaces_is_told_of_those_that_a_caller_may_see(
    secured: Secured, tenants: tuple[fl.FlightClient, fl.FlightClient]
) -> None:
    ours, theirs = tenants
    persist(ours, MINE)
    listed = {tuple(part.decode() for part in f.descriptor.path) for f in theirs.list_flights()}
    assert listed == {THEIRS}
    (status,) = act(theirs, "status")
    assert {table["namespace"] for table in status["tables"]} == {"other"}
    assert status["counts"]["tables"] == 1
    assert not TOLD.search(str(status))
    for name in status["counts"]:
        (page,) = act(theirs, "status_list", list=name)
        assert not TOLD.search(str(page))
        shown = secured.http(f"/api/status/{name}", "other")[1]
        assert not TOLD.search(str(shown))
        assert (shown["list"], shown["total"]) == (name, page["total"])
    assert [each["origin"] for each in act(theirs, "origins")] == ["topic-9"]
    assert act(theirs, "origins", origin="topic-0") == []
    assert act(theirs, "checkpoints") == []
    assert {table["namespace"] for table in secured.http("/api/status", "root")[1]["tables"]} == {
        *("shop", "other")
    }


def test_a_refusal_does_not_say_whether_a_table_is_there(
    tenants: tuple[fl.FlightClient, fl.FlightClient],
) -> None:
    def refusal(table: str) -> str:
        with pytest.raises(fl.FlightUnauthorizedError) as refused:
            act(tenants[1], "describe_table", namespace="shop", table=table)
        return str(extra(refused.value))

    assert refusal("mine") == refusal("nothing")


def test_nobody_writes_under_the_name_of_anothers_origin(
    tenants: tuple[fl.FlightClient, fl.FlightClient],
) -> None:
    ours, theirs = tenants
    for table in (THEIRS, ("other", "fresh")):
        assert "topic-0' is taken" in refusal_of(theirs, table, "topic-0")
    # An open stream holds the origin's name even before it has written.
    with Stream(theirs, writing(THEIRS, "squatted"), numbers(0, 1).schema) as stream:
        stream.write(numbers(0, 1))
        assert "is taken" in refusal_of(ours, MINE, "squatted")
    (answer,) = put(ours, MINE, numbers(0, 1), origin="topic-0", metadata=[{"sequence": 2}])
    assert (answer["duplicate"], answer["memory_sequence"]) == (False, 2)


def refusal_of(client: fl.FlightClient, table: Table, origin: str) -> str:
    """The error that ends a stream with this origin."""
    with pytest.raises((OSError, fl.FlightError)) as refused:
        put(client, table, numbers(0, 1), origin=origin, metadata=[{"sequence": 10**18}])
    return str(refused.value)
