"""Racing writers: each version has one winner, every loser commits later, no commit is doubled."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from persist.manifest import Manifest, Proposal, commit
from persist.store import ObjectStore, open_store
from tests.drivers.s3_server import S3Server
from tests.persist.manifest.conftest import BUCKET, EVERY_STORE
from tests.persist.manifest.racer import race
from tests.persist.manifest.samples import DEFINITION, ME
from tests.persist.manifest.stores import FaultyStore

NAMES = ("a", "b", "c", "d")


def check(store: ObjectStore, versions: dict[str, list[int]], each: int) -> None:
    """Every operation exists once, in the version that was reported to its writer."""
    manifest = Manifest(store, "ns", "race")
    state = manifest.load()
    total = each * len(versions)
    assert sorted(chain.from_iterable(versions.values())) == list(range(2, total + 2))
    assert state.version == total + 1
    assert sorted(state.files) == sorted(
        f"data/{name}-1-{seq}.parquet" for name in versions for seq in range(1, each + 1)
    )
    for change in manifest.changes(1, state.version):
        assert change.version in versions[change.writer.ingester_id]
        assert len(change.actions) == 2


def test_four_threads_race(store: FaultyStore) -> None:
    commit(Manifest(store, "ns", "race"), None, Proposal(DEFINITION), ME)
    with ThreadPoolExecutor(len(NAMES)) as pool:
        runs = {name: pool.submit(race, store, name, 8) for name in NAMES}
        versions = {name: run.result() for name, run in runs.items()}
    check(store, versions, 8)


@EVERY_STORE
def test_four_threads_race_while_answers_get_lost(store: FaultyStore) -> None:
    commit(Manifest(store, "ns", "race"), None, Proposal(DEFINITION), ME)
    lock = threading.Lock()
    calls = 0
    plain = store.create

    def create(path: str, data: Any) -> Any:
        nonlocal calls
        with lock:
            calls += 1
            if calls % 3 == 0:
                store.plan(("before", "after")[calls % 2], "create", path)
        return plain(path, data)

    store.create = create  # type: ignore[method-assign]
    with ThreadPoolExecutor(len(NAMES)) as pool:
        runs = {name: pool.submit(race, store, name, 8) for name in NAMES}
        versions = {name: run.result() for name, run in runs.items()}
    check(store, versions, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "each"), [("local", 50), pytest.param("s3", 15, marks=pytest.mark.s3)]
)
def test_four_processes_race(
    kind: str, each: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, options = f"file://{tmp_path}/store", dict[str, Any]()
    if kind == "s3":
        server: S3Server = request.getfixturevalue("manifest_s3_server")
        url, options = f"s3://{BUCKET}/{uuid.uuid4().hex}", server.storage_options
    store = open_store(url, **options)
    commit(Manifest(store, "ns", "race"), None, Proposal(DEFINITION), ME)
    module = [sys.executable, "-m", "tests.persist.manifest.racer"]
    running = {
        name: subprocess.Popen(
            [*module, url, name, str(each), json.dumps(options)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        for name in NAMES
    }
    versions = {}
    for name, process in running.items():
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        versions[name] = json.loads(output)
    check(store, versions, each)
