"""Files of a keyed table stay between the size limits, through any inserts and deletes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from persist.manifest import Manifest
from persist.store import open_store
from tests.drivers.daemon import Daemon
from tests.drivers.wire import create, delete, persist, put, query

TARGET = 64 << 10
TABLE = ("ns", "t")


def batch(keys: list[int], random: Random) -> pa.RecordBatch:
    """Rows that no encoding makes smaller."""
    cells = [random.randbytes(100) for _ in keys]
    return pa.record_batch(
        [pa.array(keys, pa.int64()), pa.array(cells, pa.binary())], names=["id", "cell"]
    )


def keys_of(step: int, kind: str, random: Random) -> list[int]:
    if kind == "rising":
        return list(range(step * 150, step * 150 + 150))
    return [random.randrange(5000) for _ in range(150)]


@pytest.mark.parametrize("kind", ["rising", "anywhere"])
def test_files_stay_between_a_quarter_of_the_target_and_twice(tmp_path: Path, kind: str) -> None:
    random = Random(7)
    rows: set[int] = set()
    with (
        Daemon.start(tmp_path / "d", persist__target_file_bytes=TARGET) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        manifest = Manifest(open_store(f"file://{daemon.data_dir}/store"), *TABLE)
        schema = batch([], random).schema
        create(client, TABLE, schema, primary_key=["id"])
        most = 0
        for step in range(40):
            keys = keys_of(step, kind, random)
            put(client, TABLE, batch(keys, random))
            rows |= set(keys)
            if step % 4 == 3:
                # Most of a range, so that files next to each other become small.
                low = random.randrange(max(rows))
                gone = [key for key in rows if low <= key < low + 900 and key % 10]
                if gone:
                    delete(client, TABLE, pa.record_batch([pa.array(gone)], names=["id"]))
                    rows -= set(gone)
            persist(client, TABLE)
            files = manifest.load().files.values()
            sizes = sorted(add.bytes for add in files)
            assert sum(add.rows for add in files) == len(rows)
            assert sizes[-1] <= 2 * TARGET
            assert len(sizes) == 1 or sizes[0] >= TARGET / 4, sizes
            most = max(most, len(sizes))
        assert most > 2
        assert sorted(query(client, TABLE)["id"].to_pylist()) == sorted(rows)
