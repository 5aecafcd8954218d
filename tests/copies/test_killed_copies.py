"""A daemon killed at each change of a copy: the table is either the old or the new one.

Its state exists exactly if its rows do, and a repeated copy succeeds.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ingester.client import NEVER, Client, ClientError, NotFound
from tests.drivers.daemon import Daemon, Launch

NAMESPACE, PARTITION = "n", "postgres:killed"
OLD = {1: "in a file", 2: "in the log", 3: "deleted and back"}
NEW = {"a": 1.5, "b": None}


class Dying(Launch):
    """A daemon that dies at a change."""

    command = (sys.executable, "-m", "tests.copies.dying_daemon", "serve")


def old_table(client: Client, table: str) -> None:
    """Create a table with a row in a file and other rows only in the log."""
    schema = pa.schema({"id": pa.int64(), "v": pa.string()})
    client.create_table(NAMESPACE, table, schema, primary_key=["id"])
    client.write(NAMESPACE, table, {"id": [1, 3], "v": [OLD[1], "of before"]}, origin="o")
    client.persist(NAMESPACE, table)
    client.delete(NAMESPACE, table, {"id": [3]}, origin="o")
    client.write(NAMESPACE, table, {"id": [2, 3], "v": [OLD[2], OLD[3]]}, origin="o")
    client.put_checkpoint(NAMESPACE, table, PARTITION, b"old")


def copy_new(client: Client, table: str) -> int:
    """Copy rows with other columns and another key."""
    with client.copy(NAMESPACE, table, ["k"]) as copy:
        copy.write(pa.record_batch({"k": list(NEW), "v": pa.array(NEW.values(), pa.float64())}))
        return copy.finish(PARTITION, b"new")


def found(client: Client, table: str) -> tuple[int, dict[Any, Any], bytes | None]:
    """Return the table's version, rows and state; the version is 0 if the table does not exist."""
    try:
        version = client.describe(NAMESPACE, table).table_version
    except NotFound:
        return 0, {}, None
    columns = client.query(NAMESPACE, table).to_pydict()
    key = columns["k" if "k" in columns else "id"]
    rows = dict(zip(key, columns["v"], strict=True))
    assert len(rows) == len(key), "a key stands twice"
    return version, rows, client.checkpoint(NAMESPACE, table, PARTITION).state


def dies_at(step: int, data: Path, table: str, *, there: bool) -> bool:
    """Return whether the daemon died at the n-th change of a copy."""
    once = data.with_name(f"{table}.once")
    environment = {
        "DIES_AT": str(step),
        "DIES_IN": f"{NAMESPACE}/{table}/",
        "DIES_ONCE": str(once),
    }
    settings: dict[str, object] = {"persist__max_age": "1h"}
    dying = Dying(data, environment, (), settings)
    with dying.start() as daemon, Client(daemon.flight, retry=NEVER) as client:
        if there:
            old_table(client, table)
        once.touch()
        try:
            copy_new(client, table)
        except ClientError:
            assert daemon.wait() == -signal.SIGKILL
            return True
        return False


@pytest.mark.slow
@pytest.mark.parametrize("there", [True, False], ids=["made anew", "new"])
def test_a_killed_copy_is_whole_or_nothing(tmp_path: Path, there: bool) -> None:
    data, outcomes, step = tmp_path / "data", list[int](), 0
    old = (1, OLD, b"old") if there else (0, {}, None)
    while True:
        step += 1
        table = f"t{step}"
        died = dies_at(step, data, table, there=there)
        with Daemon.start(data, persist__max_age="1h") as daemon:
            with Client(daemon.flight) as client:
                outcome = found(client, table)
                outcomes.append(outcome[0])
                new = (outcome[0], NEW, b"new")
                assert outcome == (old if outcome[0] == old[0] else new)
                if died and step % 3 == 0:
                    # Another kill, in the state after recovery.
                    daemon.kill()
            if died and step % 3 == 0:
                daemon = daemon.again()
            with daemon, Client(daemon.flight) as client:
                assert found(client, table) == outcome
                version = copy_new(client, table)
                client.write(NAMESPACE, table, {"k": ["c"], "v": [2.5]}, origin="o")
                assert found(client, table) == (version, NEW | {"c": 2.5}, b"new")
                assert daemon.terminate() == 0
        if not died:
            break
    with Daemon.start(data, persist__max_age="1h") as daemon:
        with Client(daemon.flight) as client:
            client.write(NAMESPACE, table, {"k": ["d"], "v": [3.5]}, origin="o")
        # The log restores writes to the new table into the new table.
        daemon.kill()
    with Daemon.start(data, persist__max_age="1h") as daemon, Client(daemon.flight) as client:
        assert found(client, table)[1] == NEW | {"c": 2.5, "d": 3.5}
    # After the early kills the table is the old one, and after all later kills the new one.
    assert set(outcomes) == {old[0], old[0] + 1}
    assert outcomes == sorted(outcomes)
    assert len(outcomes) > (9 if there else 3)
