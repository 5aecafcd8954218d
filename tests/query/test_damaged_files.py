"""Damaged data files: each is reported by name, and the daemon keeps running.

Some of the damaged footers make Arrow misread the file; some make Arrow end the process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, events, extra, numbers, persist, put, query, rows

KEYED_SCHEMA = pa.schema([("i", pa.int64()), ("v", pa.string())])


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("damaged")
    with Daemon.start(folder / "d", persist__max_age="1h") as daemon:
        yield daemon


def data_files(daemon: Daemon, table: Table) -> list[Path]:
    """The table's data files in the store, sorted by name."""
    return sorted((daemon.data_dir / "store" / "/".join(table)).rglob("*.parquet"))


def damage(path: Path, how: str) -> None:
    """Damage the footer, its length, a page, or the end of the file."""
    data = bytearray(path.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little")
    if how == "a byte of the footer":
        data[-8 - footer // 2] ^= 0x5A
    elif how == "the footer's length":
        data[-8:-4] = (footer + 1).to_bytes(4, "little")
    elif how == "the end is cut off":
        del data[-100:]
    elif how == "a page":
        data[8 : 8 + 40] = bytes(40)
    path.write_bytes(data)


HOW = ["a byte of the footer", "the footer's length", "the end is cut off", "a page"]


@pytest.mark.parametrize("how", HOW)
def test_a_query_that_needs_a_damaged_file_is_told_and_others_are_answered(
    daemon: Daemon, table: Table, how: str
) -> None:
    with fl.connect(daemon.flight) as client:
        put(client, table, events(0, 60, days=3))
        persist(client, table)
        damage(data_files(daemon, table)[0], how)
        put(client, table, events(60, 30, days=3))
        for _ in range(2):
            with pytest.raises(fl.FlightInternalError) as error:
                query(client, table)
            assert extra(error.value)["code"] == "internal"
        assert len(rows(client, table, scope="buffered")) == 30
        day = [["time", ">=", "2026-11-23T00:00:00Z"]]
        assert len(rows(client, table, filter=[day])) == 30
    lines = [json.loads(line) for line in daemon.stderr_file.read_text().splitlines()]
    assert {line["runbook"] for line in lines if line["event"] == "data file damaged"} == {
        "damaged-file"
    }


@pytest.mark.parametrize("how", ["a byte of the footer", "a page"])
def test_a_keyed_partition_waits_for_its_damaged_file_and_the_others_go_on(
    tmp_path: Path, how: str
) -> None:
    """A flush reads the older rows of its keys, in the process that acknowledges writes."""
    keyed, other = ("ns", "keyed"), ("ns", "other")
    with (
        Daemon.start(tmp_path / "d", persist__max_age="1h") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        create(client, keyed, KEYED_SCHEMA, primary_key=["i"])
        put(client, keyed, numbers(0, 20, v=pa.array(["old"] * 20)))
        persist(client, keyed)
        (path,) = data_files(daemon, keyed)
        whole = path.read_bytes()
        damage(path, how)
        put(client, keyed, numbers(0, 5, v=pa.array(["new"] * 5)))
        put(client, other, numbers(0, 10))
        with pytest.raises(fl.FlightInternalError, match=path.name):
            persist(client, keyed, timeout_s=30)
        persist(client, other)
        path.write_bytes(whole)
        assert rows(client, keyed, "v") == ["new"] * 5 + ["old"] * 15
        assert rows(client, other) == list(range(10))
        daemon.kill()
        with daemon.again() as again, fl.connect(again.flight) as anew:
            persist(anew, keyed)
            assert rows(anew, keyed, "v") == ["new"] * 5 + ["old"] * 15
            assert again.terminate() == 0
