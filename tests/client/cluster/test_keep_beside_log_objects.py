"""A writer keeps what is only in a daemon's log objects: another daemon may need it again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from ingester.client import Client, undurable
from tests.client.cluster.test_keep_until_durable import PATIENT, SCHEMA, home, rows
from tests.client.cluster.three import Three, three
from tests.drivers.waiting import until


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    yield from three(tmp_path_factory.mktemp("shipping"))


@pytest.mark.parametrize("keyed", [False, True])
def test_rows_of_a_lost_machine_are_resent_to_another_daemon_and_are_there_once(
    daemons: Three, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    monkeypatch.setattr(undurable, "UNREACHABLE_S", 0.5)
    table = "keyed" if keyed else "plain"
    with Client(daemons.endpoints, timeout_s=10, retry=PATIENT) as client:
        client.create_table("ns", table, SCHEMA, primary_key=["n"] if keyed else None)
        first = home(daemons, table)

        def found() -> list[int]:
            there = client.query("ns", table, missing="allow", timeout_s=30)
            return sorted(there["n"].to_pylist())

        with client.writer(
            "ns", table, SCHEMA, origin="o", first_sequence=1, keep_until_durable=True, ack="store"
        ) as writer:
            for number in range(30):
                assert writer.write(rows(number)).result(10).ack == "store"
            daemons.daemons[first].kill()
            shutil.rmtree(daemons.folder / f"d{first}")
            if keyed:  # its owner alone takes its writes
                daemons.again(first)
            writer.write(rows(30)).result(30)
        assert found() == [*range(31)]
        if not keyed:
            daemons.again(first)
        until(lambda: found() == [*range(31)], "each row to be there once")
