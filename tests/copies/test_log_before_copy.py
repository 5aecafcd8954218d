"""Rows of a log that is older than a copy are not recovered into the new table.

A daemon loses its disk with rows that are in no file, and is restarted. A copy then replaces the
table. When the old disk is found, a start on it and an adoption both refuse to mix the two
tables and say why.
"""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pyarrow as pa
import pytest

from ingester.client import Client
from ingester.recovery.adopt import adopt
from persist.store import open_store
from tests.drivers.daemon import Daemon, DaemonEnded


def test_rows_of_before_are_told_from_those_of_the_table_as_it_is(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'store'}"
    schema = pa.schema({"id": pa.int64(), "v": pa.string()})
    with Daemon.start(tmp_path / "lost", store=url, persist__max_age="1h") as daemon:
        with Client(daemon.flight) as client:
            client.create_table("n", "t", schema, primary_key=["id"])
            client.create_table("n", "other", schema, primary_key=["id"])
            for table in ("t", "other"):
                client.write("n", table, {"id": [1], "v": ["of before"]}, origin="lost")
        daemon.kill()
    new = pa.record_batch({"id": ["a"], "w": [1.5]})
    with Daemon.start(
        tmp_path / "found", store=url, persist__max_age="1h", recovery__accept_lost_log="true"
    ) as daemon:
        with Client(daemon.flight) as client:
            with client.copy("n", "t", ["id"]) as copy:
                copy.write(new)
                copy.finish("source", b"")
            client.write("n", "t", {"id": ["b"], "w": [2.5]}, origin="later")
        assert daemon.terminate() == 0

    copytree(tmp_path / "lost", tmp_path / "adopted")
    found = adopt(tmp_path / "adopted", open_store(url))
    by_table = {each.table: each for each in found.tables}
    assert (by_table["other"].rows, by_table["other"].refused) == (1, None)
    assert by_table["t"].rows == 0
    assert by_table["t"].refused is not None
    assert "a copy has replaced it" in by_table["t"].refused

    with pytest.raises(DaemonEnded, match="replaced the table by a copy"):
        Daemon.start(tmp_path / "lost", store=url)
    with (
        Daemon.start(tmp_path / "found", store=url, recovery__accept_lost_log="true") as daemon,
        Client(daemon.flight) as client,
    ):
        rows = sorted(client.query("n", "t").to_pylist(), key=lambda row: row["id"])
        assert rows == [{"id": "a", "w": 1.5}, {"id": "b", "w": 2.5}]
        assert client.query("n", "other").to_pylist() == [{"id": 1, "v": "of before"}]
