"""The records of origins in the log and in the store: what replaces them, and when."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import trio

from ingester.dml.control_records import decode_origins
from persist.store import open_store
from tests.drivers.held_shipping import NAMESPACE, shipping_daemon
from tests.drivers.waiting import PATIENCE_S
from wal import RecordKind, RouteState
from wal.objects import decode_object, object_folder


def test_a_barrier_leaves_the_record_at_the_head_of_its_segment(tmp_path: Path) -> None:
    async def first() -> None:
        async with shipping_daemon(tmp_path) as daemon:
            await (await daemon.writer("t", "o")).write(1)
            await daemon.persist("t")
            await daemon.runtime.wal.rotate(force=True)
            await daemon.runtime.flush.log_truncation.truncate()
            answered = trio.Event()
            log, route = daemon.runtime.write.operation_log, daemon.table("t").route
            log.append_barrier((route,), lambda error: answered.set())
            await daemon.shipped(1)
            route.state = RouteState.SHIPPED
            assert await daemon.give_back()
            await answered.wait()

    async def second() -> None:
        async with shipping_daemon(tmp_path) as daemon:
            origins = daemon.runtime.tables.origins
            assert origins.is_applied("o", (NAMESPACE, "t"), 1)
            assert not origins.is_applied("o", (NAMESPACE, "t"), 2)

    async def run() -> None:
        with trio.fail_after(PATIENCE_S):
            await first()
            await second()

    trio.run(run)


def told_in_store(folder: Path) -> list[tuple[str, str, str, int]] | None:
    """The newest record of origins in the log objects."""
    store = open_store(f"file://{folder / 'store'}")
    found = None
    for info in sorted(store.list(object_folder("here")), key=lambda each: each.path):
        for record in decode_object(store.get(info.path), info.path).records:
            if record.header.kind == RecordKind.ORIGINS:
                found = decode_origins(pa.py_buffer(record.payload))
    return found


def test_a_record_is_replaced_in_the_store_before_an_origin_is_taken_again(tmp_path: Path) -> None:
    async def run() -> None:
        with trio.fail_after(PATIENCE_S):
            async with shipping_daemon(tmp_path, really=True) as daemon:
                ships, local = await daemon.writer("ships", "o"), await daemon.writer("local", "p")
                ships.stream.plan.table.route.state = RouteState.SHIPPED
                await ships.write(1)
                await local.write(1)
                assert told_in_store(tmp_path) is None
                await ships.write(2)
                await daemon.runtime.tables.takeover._begin_segment()
                # Without what only the disk has.
                assert told_in_store(tmp_path) == [("o", NAMESPACE, "ships", 2)]
                await daemon.persist("local")
                await daemon.runtime.tables.takeover._begin_segment()
                told = [("o", NAMESPACE, "ships", 2), ("p", NAMESPACE, "local", 1)]
                assert told_in_store(tmp_path) == told

    trio.run(run)
