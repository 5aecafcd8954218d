"""Garbage collection deletes a file before its late commit; the flush repeats the upload."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio

from persist.manifest import Manifest, Retention, clean_up
from persist.store import open_store
from persist.store.contract import PutInfo
from persist.store.local import LocalStore
from tests.drivers.stage import (
    AS_THEY_CAME,
    KEYED,
    KEYED_PARTITIONED,
    PARTITIONED,
    PARTITIONS,
    SORTED,
    Stage,
)

HOURS_S = 7200


class SlowStore(LocalStore):
    """Makes some uploads take two hours, during which another process collects garbage."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.slow = 0
        """The number of the next uploads that are slow."""
        self.taken = 0
        self._counting = threading.Lock()

    def put(self, path: str, data: Any) -> PutInfo:
        info = super().put(path, data)
        with self._counting:
            if not path.endswith(".parquet") or self.slow == 0:
                return info
            self.slow -= 1
            self.taken += 1
        file = Path(self.url.removeprefix("file://")) / path
        then = info.at.timestamp() - HOURS_S
        os.utime(file, (then, then))
        info = info._replace(at=self.exists(path).at)  # type: ignore[union-attr]
        clean_up(Manifest(open_store(self.url), "ns", "t"), Retention())
        assert not file.exists()
        return info


async def _write_and_persist(stage: Stage, store: SlowStore, slow: list[int]) -> None:
    async with stage.running():
        for count in slow:
            stage.write(14)
            store.slow = count
            await stage.persist()


@pytest.mark.parametrize("kind", [SORTED, PARTITIONED, AS_THEY_CAME, KEYED, KEYED_PARTITIONED])
def test_an_upload_that_was_slow_to_commit_is_repeated(kind: str, tmp_path: Path) -> None:
    store = SlowStore(tmp_path / "store")
    stage = Stage(tmp_path, kind, store)
    trio.run(_write_and_persist, stage, store, [0, 1, 2, 0, 1])
    assert store.taken == 4
    manifest = Manifest(open_store(f"file://{tmp_path}/store"), "ns", "t")
    state = manifest.load()
    root = tmp_path / "store" / manifest.root
    tables = [pq.read_table(root / path, partitioning=None) for path in state.files]
    found = [n for table in tables for n in table["n"].to_pylist()]
    if kind == KEYED:
        assert sorted(found) == sorted({k: n for n, k in stage.rows}.values())
    elif kind == KEYED_PARTITIONED:
        last = {(n % PARTITIONS, k): n for n, k in stage.rows}
        assert sorted(found) == sorted(last.values())
    else:
        assert sorted(found) == [n for n, _ in stage.rows]
