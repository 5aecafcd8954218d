"""A daemon adopts the logs under its care once their daemons are dead."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from ingester.store_log.heartbeat import decode_heartbeat, heartbeat_path
from persist.store import open_store
from tests.cli.conftest import run_command
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import ARROW_AND_FLIGHT, create, http, numbers, persist, put, rows
from tests.fencing.pairs import pause, resume, store_url

PLAIN, KEYED = ("ns", "plain"), ("ns", "keyed")
SCHEMA = pa.schema([pa.field("i", pa.int64(), nullable=False), pa.field("v", pa.int64())])


def _keyed(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"i": range(first, first + count), "v": [1] * count}, schema=SCHEMA)


def _adoptions(daemon: Daemon) -> dict[str, dict[str, Any]]:
    found = json.loads(http(f"{daemon.http}/api/status")[2])["adoptions"]
    return {Path(each["directory"]).name: each for each in found}


def test_logs_of_daemons_that_are_gone_are_adopted_once_and_others_left_alone(
    tmp_path: Path,
) -> None:
    common: dict[str, Any] = {"store": store_url(tmp_path), "persist__max_age": "1h"}
    data = tmp_path / "data"
    dead = Daemon.start(data / "dead", id="dead", **common)
    with fl.connect(dead.flight) as client:
        create(client, KEYED, SCHEMA, primary_key=["i"])
        put(client, KEYED, _keyed(0, 5))
        put(client, PLAIN, numbers(0, 5))
    dead.kill()
    (data / "no-daemon").mkdir()
    with Daemon.start(data / "alive", id="alive", **common) as alive:
        with fl.connect(alive.flight) as client:
            put(client, PLAIN, numbers(5, 5))
        heir = Daemon.start(
            data / "heir",
            id="heir",
            arguments=["--adopt", str(data / "*")],
            recovery__adopt_after=0.3,
            **common,
        )
        with heir, fl.connect(heir.flight) as client:
            until(lambda: _adoptions(heir).get("dead", {}).get("state") == "adopted", "adoption")
            found = _adoptions(heir)
            assert {name: each["state"] for name, each in found.items()} == {
                "dead": "adopted",
                "alive": "held",
                "no-daemon": "absent",
            }
            assert found["dead"]["rows"] == 10
            said = run_command("status", cwd=tmp_path, endpoint=heir.flight).stdout.decode()
            assert "dead: adopted, 10 rows adopted" in " ".join(said.split())
            # The keyed table accepts writes again and has its rows.
            put(client, KEYED, _keyed(5, 1))
            assert rows(client, KEYED) == list(range(6))
            assert rows(client, PLAIN) == list(range(5))
            # The dead daemon returns to a log whose rows are all in files, and has each row once.
            with dead.again() as back, fl.connect(back.flight) as other:
                assert rows(other, PLAIN) == list(range(5))
                until(lambda: _adoptions(heir)["dead"]["state"] == "held", "its daemon")


def test_logs_in_the_store_are_adopted_once_their_daemons_show_no_sign_of_life(
    tmp_path: Path,
) -> None:
    common: dict[str, Any] = {"store": store_url(tmp_path), "persist__max_age": "1h"}
    dead = Daemon.start(tmp_path / "dead", id="pod-1", wal__disk="off", **common)
    with fl.connect(dead.flight) as client:
        create(client, KEYED, SCHEMA, primary_key=["i"])
        put(client, KEYED, _keyed(0, 5))
        put(client, PLAIN, numbers(0, 5))
    dead.kill()
    shutil.rmtree(dead.data_dir)
    heir = Daemon.start(
        tmp_path / "heir",
        id="pod-2",
        arguments=["--adopt", "store:pod-*"],
        recovery__adopt_after=1,
        **common,
    )
    with heir, fl.connect(heir.flight) as client:
        until(lambda: _adoptions(heir).get("store:pod-1", {}).get("state") == "adopted", "adoption")
        assert set(_adoptions(heir)) == {"store:pod-1"}, "not its own"
        assert _adoptions(heir)["store:pod-1"]["rows"] == 10
        put(client, KEYED, _keyed(5, 1))
        assert rows(client, KEYED) == list(range(6))
        assert rows(client, PLAIN) == list(range(5))
        # It returns with an empty disk, and nobody has to accept anything.
        with Daemon.start(tmp_path / "back", id="pod-1", wal__disk="off", **common) as back:
            with fl.connect(back.flight) as other:
                put(other, PLAIN, numbers(5, 5))
                assert rows(other, PLAIN) == list(range(10))
            back.kill()
        shutil.rmtree(back.data_dir)
        until(lambda: _adoptions(heir)["store:pod-1"]["rows"] == 15, "its second log")
        until(lambda: rows(client, PLAIN) == list(range(10)), "its rows")


def test_a_quiet_daemon_is_left_alone_and_a_paused_one_is_fenced_by_its_adoption(
    tmp_path: Path,
) -> None:
    common: dict[str, Any] = {"store": store_url(tmp_path), "persist__max_age": "1h"}
    quiet = Daemon.start(tmp_path / "quiet", id="quiet", wal__disk="off", **common)
    heir = Daemon.start(
        tmp_path / "heir",
        id="heir",
        arguments=["--adopt", "store:quiet"],
        recovery__adopt_after=8,
        **common,
    )
    with quiet, heir, fl.connect(quiet.flight) as client, fl.connect(heir.flight) as other:
        put(client, PLAIN, numbers(0, 5))
        seen: set[str] = set()

        def has_beaten_twice() -> bool:
            seen.add(_adoptions(heir).get("store:quiet", {}).get("state", "absent"))
            path = heartbeat_path("quiet")
            store = open_store(store_url(tmp_path))
            found = decode_heartbeat(store.get(path)) if store.exists(path) else None
            return found is not None and found.beat >= 2

        until(has_beaten_twice, "two heartbeats")
        assert seen <= {"absent", "waiting", "held"}
        persist(client, PLAIN)
        until(lambda: _adoptions(heir)["store:quiet"]["state"] == "absent", "its rest")
        put(client, PLAIN, numbers(5, 5))
        pause(quiet)
        until(lambda: _adoptions(heir)["store:quiet"]["rows"] == 5, "the adoption")
        resume(quiet)
        with suppress(*ARROW_AND_FLIGHT):
            put(client, PLAIN, numbers(10, 5))
        assert quiet.wait() == 6
        until(lambda: rows(other, PLAIN) == list(range(10)), "each acknowledged row, once")


def test_a_log_of_another_store_is_told_and_left(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "other", id="other", persist__max_age="1h") as other:
        with fl.connect(other.flight) as client:
            put(client, PLAIN, numbers(0, 5))
        other.kill()
    settings: dict[str, Any] = {"recovery__adopt": str(tmp_path / "other"), "id": "heir"}
    with Daemon.start(tmp_path / "heir", recovery__adopt_after=0, **settings) as heir:
        until(lambda: _adoptions(heir).get("other", {}).get("state") == "failed", "a failure")
        assert "is this the right store?" in _adoptions(heir)["other"]["problem"]
        problems = json.loads(http(f"{heir.http}/api/status")[2])["errors"]
        assert problems[0]["runbook"] == "RUNBOOK.md#not-adopted" or "not-adopted" in str(problems)
