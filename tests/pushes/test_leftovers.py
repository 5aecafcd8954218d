"""A region that was skipped discards the push's version once it is reachable again."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

from ingester.pushes.controller import Controller
from ingester.pushes.leading import Leadership
from ingester.pushes.record import PushRecord
from ingester.pushes.states import Status
from ingester.pushes.tasks import Rules
from persist.manifest import list_versions
from tests.pushes.realm import TABLE, Job, Realm, in_folders, some_rows


def test_a_region_that_was_skipped_gives_the_version_up_once_it_is_back(tmp_path: Path) -> None:
    realm = in_folders(tmp_path, "ab")
    realm.push(some_rows(0, 30), "p0")
    realm.rules = Rules(on_unreachable="skip", unreachable_after=timedelta(hours=1))
    held, job = realm.begin(some_rows(0, 50)), Job(realm, some_rows(0, 50))
    home, away = tmp_path / "b", tmp_path / "elsewhere"

    def hear(record: PushRecord) -> None:
        job.hear(record)
        if not away.exists() and record.region("a").status is Status.SERVING:
            home.rename(away)

    record = realm.step(held, hear)
    assert [each.status for each in record.regions] == [Status.SERVING, Status.FAILED]

    look(realm)
    assert realm.regions["a"].home.store.exists("_pushes/p1/left/b") is None
    away.rename(home)
    assert kept(realm) == [1, 2, 3], "it stays where nobody cleans up"
    look(realm)
    assert kept(realm) == [1, 2]
    assert realm.states() == [(3, 50), (2, 30)]
    before = sorted(path for path in home.rglob("*") if path.is_file())
    look(realm)
    assert sorted(path for path in home.rglob("*") if path.is_file()) == before, "asked once"
    assert realm.pushes.newest("p1").record == record


def look(realm: Realm) -> None:
    """Let a new controller scan all pushes once."""
    leadership = Leadership(
        store=realm.first,
        controller="c2",
        regions=lambda: realm.regions,
        panel=realm.panel,
        rules=realm.rules,
    )
    Controller(leadership).run_once(threading.Event())


def kept(realm: Realm) -> list[int]:
    """Return the versions of region b that were not discarded."""
    listed = list_versions(realm.regions["b"].home.store, *TABLE)
    return [each.version for each in listed if each.kept]
