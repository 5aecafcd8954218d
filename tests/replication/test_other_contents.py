"""A transaction may say what it contains: a repeat of its sequence must contain the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from ingester.client import Client, InvalidRequest, SyncAnswer, SyncColumn, SyncContent
from tests.fencing.pairs import start

COLUMNS = [SyncColumn("old_pk", "id"), SyncColumn("new_pk", "id"), SyncColumn("value", "name")]


def rows(*values: tuple[int, str]) -> pa.RecordBatch:
    """A message that inserts or replaces rows."""
    ids, names = ([value[side] for value in values] for side in (0, 1))
    return pa.record_batch(
        [pa.nulls(len(ids), pa.int64()), pa.array(ids), pa.array(names)], ["o", "n", "v"]
    )


def send(endpoint: str, name: str, sequence: int, content: SyncContent | None) -> SyncAnswer:
    """Send a transaction of two tables, in three messages."""
    with Client(endpoint) as client:
        stream = client.sync("ns", "source")
        stream.send("a", COLUMNS, rows((1, name)), begin=True)
        stream.send("b", COLUMNS, rows((1, name)))
        return stream.send("a", COLUMNS, rows((2, name)), sequence=sequence, content=content)


@pytest.mark.parametrize("then", ["as it is", "killed", "in files, and the disk lost"])
def test_a_repeat_with_another_content_is_refused(tmp_path: Path, then: str) -> None:
    one, other = SyncContent(3, 2**64 - 1), SyncContent(3, 7)
    with start(tmp_path, "d") as daemon:
        assert not send(daemon.flight, "one", 17, one).duplicate
        if then.startswith("in files"):
            with Client(daemon.flight) as client:
                client.persist("ns")
        if then != "as it is":
            daemon.kill()
        if then.startswith("in files"):
            shutil.rmtree(daemon.data_dir)
        with daemon if then == "as it is" else daemon.again() as daemon:
            with pytest.raises(
                InvalidRequest, match=r"sequence 17 of table ns/[ab] was written bef"
            ):
                send(daemon.flight, "other", 17, other)
            if not then.startswith("in files"):
                answer = send(daemon.flight, "one", 17, one)
                assert (answer.duplicate, answer.compared) == (True, True)
                # Without a content, the number alone counts, as before.
                answer = send(daemon.flight, "other", 17, None)
                assert (answer.duplicate, answer.compared) == (True, False)
            assert not send(daemon.flight, "more", 18, other).duplicate
            with Client(daemon.flight) as client:
                for table in ("a", "b"):
                    names = client.query("ns", table)["name"].to_pylist()
                    assert set(names) == {"more"}


@pytest.mark.parametrize("content", [SyncContent(-1, 0), SyncContent(0, -1), SyncContent(0, 2**64)])
def test_a_content_out_of_range_is_refused(tmp_path: Path, content: SyncContent) -> None:
    with (
        start(tmp_path, "d") as daemon,
        pytest.raises(InvalidRequest, match="content"),
    ):
        send(daemon.flight, "one", 1, content)
