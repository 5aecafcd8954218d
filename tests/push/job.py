"""A push job without Spark: it begins the push, and writes its rows once the versions exist.

python -m tests.push.job CONFIG PUSH_ID EDITION good|bad DIE_AT before|after
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress

import pyarrow as pa

from ingester.pushes.config import PushConfig, read_push_config
from ingester.pushes.driver import utc_now
from ingester.pushes.leading import controller_name
from ingester.pushes.record import PushPlan, PushRecord, new_push
from ingester.pushes.regions.region import StoreRegion
from ingester.pushes.regions.shapes import PushedFile
from ingester.pushes.store import PushExists, PushStore
from ingester.pushes.tasks import RegionUnreachable
from ingester.spark.sink.data_files import FileSink
from persist.store import ObjectStore
from tests.push.dying import Death
from tests.push.leader import regions_of
from tests.push.rows import NAMESPACE, SCHEMA, TABLE, edition

POLL_S = 0.1
REPLAY = "start"
PARTITIONS = ("bucket(2, host)",)


def main(file: str, push_id: str, number: str, how: str, at: str, when: str) -> None:
    """Begin the push unless it has begun, and make sure that its data exists."""
    config = read_push_config(file)
    regions = regions_of(config, Death(int(at), done=when == "after"))
    pushes = PushStore(regions[config.names[0]].home.store)
    with suppress(PushExists):
        pushes.begin(_new(config, push_id), controller_name(), utc_now())
    while True:
        record = pushes.newest(push_id).record
        if record.over or record.ending is not None:
            return
        if all(region.table_version is not None for region in record.regions):
            break
        time.sleep(POLL_S)
    _write(record, regions, edition(int(number), bad=how == "bad"))


def _new(config: PushConfig, push_id: str) -> PushRecord:
    plan = PushPlan(
        schema=SCHEMA.serialize().to_pybytes(), partition_by=PARTITIONS, replay_since=REPLAY
    )
    return new_push(push_id, (NAMESPACE, TABLE), config.order(), {}, utc_now(), plan)


def _write(record: PushRecord, regions: dict[str, StoreRegion], rows: pa.Table) -> None:
    """Write to the first region, and copy the same files to all others."""
    first, *others = [regions[name] for name in record.order.regions]
    store, root = first.place(record)
    sink = FileSink(store, root, first.definition(record), "push", "job")
    files = [PushedFile.of(add) for add in sink.write(rows.to_batches())]
    for other in others:
        _copy(store, root, other, record, files)
    for region in (first, *others):
        while True:
            try:
                region.commit_data(record, files)
                break
            except RegionUnreachable:
                time.sleep(POLL_S)


def _copy(
    store: ObjectStore, root: str, to: StoreRegion, record: PushRecord, files: list[PushedFile]
) -> None:
    target = to.place(record)
    for file in files:
        target.store.put(f"{target.root}/{file.path}", store.get(f"{root}/{file.path}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
