"""The version that the persist action returns has every row acknowledged before the call."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.wire import Table, act, describe, events, numbers, persist, put, rows


def test_persist_of_a_namespace_or_of_everything(client: fl.FlightClient, table: Table) -> None:
    namespace = f"ns-{table[1]}"
    tables = [(namespace, name) for name in ("a", "b")]
    for each in tables:
        put(client, each, numbers(0, 5))
    answers = act(client, "persist", namespace=namespace)
    assert [(answer["namespace"], answer["table"]) for answer in answers] == tables
    for answer, each in zip(answers, tables, strict=True):
        version = answer["manifest_version"]
        assert rows(client, each, scope="version", version=version) == list(range(5))
    put(client, tables[0], numbers(5, 1))
    everything = {
        (a["namespace"], a["table"]): a["manifest_version"] for a in act(client, "persist")
    }
    assert rows(client, tables[0], scope="version", version=everything[tables[0]]) == list(range(6))
    with pytest.raises(pa.ArrowKeyError, match="nothing-here"):
        act(client, "persist", namespace="nothing-here")


def test_persist_holds_everything_acknowledged_before_and_jobs_under_way(
    client: fl.FlightClient, table: Table
) -> None:
    count = 0
    for _ in range(10):
        for _ in range(3):
            put(client, table, events(count, 100, days=4))
            count += 100
        version = persist(client, table)
        assert len(rows(client, table, scope="version", version=version)) == count
        assert describe(client, table)["buffered"]["rows"] == 0


def test_persist_of_nothing_answers_with_the_version_that_is(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    version = persist(client, table)
    assert persist(client, table) == version


def test_persist_past_its_timeout_says_so_and_the_work_goes_on(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 50_000, days=5))
    with pytest.raises(fl.FlightTimedOutError) as error:
        persist(client, table, timeout_s=0)
    assert json.loads(error.value.extra_info)["code"] == "timeout"
    version = persist(client, table)
    assert len(rows(client, table, scope="version", version=version)) == 50_000
