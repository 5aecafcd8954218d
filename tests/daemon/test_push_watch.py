"""The pushes that a daemon shows: the newest, each read once, whatever else is in the folder."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from ingester.daemon.push_watch import LED_S, MAX_BYTES, SHOWN, PushReader, PushWatch
from ingester.observability.status import UnreadablePush
from ingester.pushes.leading import push_status
from ingester.pushes.record import new_push
from ingester.pushes.states import RegionOrder
from ingester.reports.pushes import (
    KeptIn,
    Leader,
    PushStatus,
    encode_push_status,
    status_path,
)
from persist.store import ObjectStore, StoreUnavailable, open_store
from tests.cli.conftest import run_command
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.pushes.world import BEGAN

Json = dict[str, Any]


class CountingStore:
    """A store that counts requests, and fails to list while ``away`` is set."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.read: list[str] = []
        self.asked: Counter[str] = Counter()
        self.away = False

    def __getattr__(self, name: str) -> Any:
        if self.away and name == "list":
            raise StoreUnavailable("the store is away")
        self.asked[name] += 1
        return getattr(self._inner, name)

    def get(self, path: str) -> bytes:
        self.read.append(path)
        return self._inner.get(path)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    """An empty store."""
    return CountingStore(open_store(f"file://{tmp_path}"))


def a_push(push_id: str, **changed: Any) -> PushStatus:
    record = new_push(push_id, ("shop", "visits"), RegionOrder(("eu", "us")), {}, BEGAN)
    kept_in = KeptIn(region="eu", url="s3://lake/eu")
    told = push_status(record, kept_in, Leader(controller="batch-7", at=BEGAN))
    return msgspec.structs.replace(told, **changed)


def tell(store: Any, status: PushStatus, folder: Path, age_s: float = 60.0) -> None:
    """Write a status with a modification time ``age_s`` ago."""
    store.put(status_path(status.push_id), encode_push_status(status))
    at = time.time() - age_s
    os.utime(folder / status_path(status.push_id), (at, at))


def test_the_newest_are_read_and_each_again_only_when_it_has_changed(
    store: CountingStore, tmp_path: Path
) -> None:
    for number in range(SHOWN + 2):
        tell(store, a_push(f"p{number:03}"), tmp_path, age_s=1000.0 - number)
    reader = PushReader(store)
    look = reader.look()
    assert [each.info.path for each in look.told][:2] == ["_push_status/p051", "_push_status/p050"]
    assert (len(look.told), look.left_out, len(store.read)) == (SHOWN, 2, SHOWN)
    assert look.told[0].told_s() == pytest.approx(949, abs=5)
    reader.look()
    assert len(store.read) == SHOWN, "nothing has changed"
    tell(store, a_push("p000", status="WRITING"), tmp_path, age_s=10.0)
    newest = reader.look().told[0].content
    assert isinstance(newest, PushStatus) and newest.status == "WRITING"
    assert store.read[SHOWN:] == ["_push_status/p000"]
    store.read.clear()
    tell(store, a_push("p001"), tmp_path, age_s=0.0)
    reader.look()
    reader.look()
    assert store.read == ["_push_status/p001"] * 2, "it may change within the same second"


def test_a_look_at_nothing_new_is_one_request(store: CountingStore, tmp_path: Path) -> None:
    """The daemon polls forever, and some stores write and delete a file to tell the time."""
    reader = PushReader(store)
    reader.look()
    assert store.asked == {"list": 1}
    tell(store, a_push("p1"), tmp_path)
    tell(store, a_push("p2"), tmp_path)
    store.asked.clear()
    reader.look()
    assert store.asked == {"list": 1, "now": 1}, "one time does for all that have changed"
    before = [each.told_s() for each in reader.look().told]
    assert store.asked == {"list": 2, "now": 1}
    assert min(each.told_s() for each in reader.look().told) > min(before), "they grow older"


def test_what_is_no_push_status_is_named_and_hides_nothing(
    store: CountingStore, tmp_path: Path
) -> None:
    tell(store, a_push("good"), tmp_path)
    store.put("_push_status/foreign", b"\xff\x00")
    store.put("_push_status/empty", b"")
    store.put("_push_status/a/b", encode_push_status(a_push("b")))
    store.put("_push_status/other", encode_push_status(a_push("good")))
    store.put("_push_status/huge", b" " * (MAX_BYTES + 1))
    told = [each.content for each in PushReader(store).look().told]
    assert [each.push_id for each in told if isinstance(each, PushStatus)] == ["good"]
    bad = {each.path: each.reason for each in told if isinstance(each, UnreadablePush)}
    assert sorted(bad) == [
        f"_push_status/{n}" for n in ("a/b", "empty", "foreign", "huge", "other")
    ]
    assert "it says that it is of push 'good'" in bad["_push_status/other"]
    assert "_push_status/huge" not in store.read


def test_a_store_that_is_away_leaves_what_was_seen_and_says_so(
    store: CountingStore, tmp_path: Path
) -> None:
    tell(store, a_push("old"), tmp_path, age_s=LED_S + 10)
    tell(store, a_push("ended", ended_at=BEGAN), tmp_path, age_s=5)
    tell(store, a_push("now", began_at=BEGAN - timedelta(days=1)), tmp_path, age_s=5)

    async def main() -> None:
        watch = PushWatch(store)
        await watch.look()
        store.away = True
        await watch.look()
        pushes = watch.pushes()
        assert [(push.push_id, push.led) for push in pushes] == [
            ("old", False),
            ("now", True),
            ("ended", False),
        ]
        assert watch.statistics().failure == "the store is away"
        assert watch.statistics().read_at is not None
        store.away = False
        await watch.look()
        assert watch.statistics().failure is None

    trio.run(main)


def test_a_daemon_shows_the_pushes_of_its_store(shared: Daemon, tmp_path: Path) -> None:
    def status() -> Json:
        with urllib.request.urlopen(f"{shared.http}/api/status", timeout=10) as answer:
            found: Json = json.loads(answer.read())
            return found

    store = open_store(status()["identity"]["store"])
    region = msgspec.structs.replace(a_push("shown").regions[0], reason="a\x1b[31m reason")
    store.put(status_path("shown"), encode_push_status(a_push("shown", regions=(region,))))
    store.put("_push_status/bad", b"bad")
    try:
        until(lambda: bool(status()["pushes"]), "the daemon to look")
        (push,) = status()["pushes"]
        assert (push["push_id"], push["status"], push["led"]) == ("shown", "STARTED", True)
        assert push["leader"] == {"controller": "batch-7", "at": "2026-11-26T08:00:00Z"}
        assert push["events"] == [
            {"at": "2026-11-26T08:00:00Z", "region": None, "what": "push began"}
        ]
        printed = run_command("status", cwd=tmp_path, endpoint=shared.flight).stdout.decode()
        assert "shown  shop.visits" in printed
        assert "a\\x1b[31m reason" in printed
        assert "_push_status/bad" in printed
    finally:
        store.delete(status_path("shown"))
        store.delete("_push_status/bad")


def test_a_name_that_is_no_unicode_is_told_readable(tmp_path: Path) -> None:
    """The daemon's status is JSON, which cannot hold such a name."""
    (tmp_path / "_push_status").mkdir()
    (tmp_path / "_push_status" / os.fsdecode(b"\xff")).write_text("{}")
    (told,) = PushReader(open_store(f"file://{tmp_path}")).look().told
    shown = json.loads(msgspec.json.encode(told.content))
    assert shown["path"] == r"_push_status/\udcff"
