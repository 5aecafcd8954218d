"""How long the daemon remembers an origin, across garbage collection and snapshots."""

from __future__ import annotations

import shutil
from pathlib import Path

from persist.manifest import Manifest, Retention, clean_up, write_snapshot
from persist.store import open_store
from tests.drivers.waiting import until
from tests.fencing.pairs import start, store_url
from tests.origins.senders import (
    ORIGIN,
    TABLE,
    duplicates,
    in_files,
    known,
    persisted,
    rows_of,
    send,
)


def manifest_of(folder: Path) -> Manifest:
    return Manifest(open_store(store_url(folder)), *TABLE)


def test_an_origins_memory_survives_clean_up_and_the_loss_of_the_disk(tmp_path: Path) -> None:
    with start(tmp_path, "a") as daemon:
        send(daemon, range(1, 6))
        persisted(daemon)
        for _ in range(3):
            send(daemon, [1], origin="another")
            persisted(daemon)
        daemon.kill()
        manifest = manifest_of(tmp_path)
        state = manifest.load()
        write_snapshot(manifest, state)
        kept = Retention(retain_s=0.0, orphan_grace_s=0.0, keep_versions=1)
        assert clean_up(manifest, kept).commits.files
        assert manifest_of(tmp_path).load().origins == state.origins
        shutil.rmtree(daemon.data_dir)
        with daemon.again() as again:
            told = known(again)
            assert told is not None
            assert told["durable_sequence"] == 5
            assert duplicates(send(again, range(1, 7))) == [True] * 5 + [False]


def test_an_origin_that_was_silent_for_long_is_forgotten_and_writes_anew(tmp_path: Path) -> None:
    with start(tmp_path, "a", origins__expire_after="1s", wal__segment_age="500ms") as daemon:
        send(daemon, range(1, 4))
        persisted(daemon)
        assert ORIGIN in manifest_of(tmp_path).load().origins
        sent = 0

        def forgotten() -> bool:
            nonlocal sent
            sent += 1
            send(daemon, [sent], origin="busy")
            persisted(daemon)
            return ORIGIN not in manifest_of(tmp_path).load().origins

        until(forgotten, "the origin to expire")
        until(lambda: forgotten() and known(daemon) is None, "the daemon to forget it, too")
        assert "busy" in manifest_of(tmp_path).load().origins
        # The origin has been forgotten, so these are not recognized as duplicates.
        answers = send(daemon, [3, 4])
        assert duplicates(answers) == [False, False]
        assert answers[0]["first"]
        persisted(daemon)
    busy = rows_of(range(1, sent + 1))
    assert in_files(tmp_path) == sorted(rows_of([1, 2, 3]) + rows_of([3, 4]) + busy)


def test_an_origin_costs_as_much_after_many_batches_as_after_one(tmp_path: Path) -> None:
    with start(tmp_path, "a") as daemon:
        for number in range(1, 21):
            send(daemon, [number])
            if number in (1, 20):
                persisted(daemon)
                (origin,) = manifest_of(tmp_path).load().origins.values()
                assert (origin.complete, origin.ahead, len(origin.runs)) == (number, (), 1)
        assert daemon.terminate() == 0
    assert in_files(tmp_path) == rows_of(range(1, 21))
