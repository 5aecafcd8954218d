"""A shipper behind a real log, written by several threads while it rotates."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random

import trio

from ingester.store_log.shipper import ShipHooks, ShipLimits, Shipper
from tests.store_log.driving import WRITER
from tests.store_log.held_store import HeldStore
from tests.wal.driving import SMALL, operation
from wal import Entry, Log, LogError, LogIdentity, RecordKind, Route

THREADS, EACH = 4, 150


def test_each_table_is_applied_in_log_order_and_no_object_lacks_an_operation(
    tmp_path: Path,
) -> None:
    trio.run(_write_and_check, tmp_path)


async def _write_and_check(tmp_path: Path) -> None:
    routes = [Route(f"ns/{number}") for number in range(3)]
    applied: list[Entry] = []
    flushed: dict[str, list[Entry]] = {}
    answers: dict[Entry, BaseException | None] = {}
    all_answered = trio.Event()

    def answer(entry: Entry, error: BaseException | None) -> None:
        assert entry not in answers
        answers[entry] = error
        if len(answers) == THREADS * EACH:
            all_answered.set()

    async def flush(name: str) -> None:
        log.catch_up()
        flushed[name] = [each for each in applied if name in _tables(each)]
        await trio.sleep(0.002)

    def shipped(entries: Sequence[Entry], error: LogError | None) -> None:
        log.shipped(entries, error)

    store, log = HeldStore(), Log(tmp_path, SMALL)
    await log.recover()
    await log.start(LogIdentity(WRITER.ingester_id, WRITER.incarnation, WRITER.epoch), 1)
    hooks = ShipHooks(shipped, flush, log.catch_up, lambda: log.open_segment, lambda kept: None)
    shipper = Shipper(store, WRITER, ShipLimits(interval_s=0.002, max_bytes=3000), hooks)

    def write(number: int) -> None:
        rng = Random(number)
        for at in range(EACH):
            entry = operation(b"%d/%d" % (number, at) * 10)
            entry.routes = tuple(rng.sample(routes, rng.choice([1, 1, 1, 2])))
            entry.at_store = at > EACH // 3 and rng.random() < 0.1
            entry.on_done = answer
            (log.append if rng.random() < 0.5 else log.append_nowait)(entry)
            log.tell()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(shipper.run)
            await nursery.start(log.run, applied.extend, None, shipper)
            threads = [threading.Thread(target=write, args=(n,)) for n in range(THREADS)]
            for thread in threads:
                thread.start()
            await all_answered.wait()
            await log.close()
            nursery.cancel_scope.cancel()
    assert set(answers.values()) == {None}
    assert len(applied) == len(set(applied)) == THREADS * EACH
    stored = [
        record.header.first_seq
        for each in store.objects()
        for record in each.records
        if record.header.kind == RecordKind.OPERATION
    ]
    assert sorted(stored) == sorted(entry.seq for entry in applied if entry.shipped)
    assert len({entry.segment for entry in applied}) > 3, "the log has rotated"
    for route in routes:
        own = [entry for entry in applied if route in entry.routes]
        assert [entry.seq for entry in own] == sorted(entry.seq for entry in own)
        local = [entry for entry in own if not entry.shipped]
        assert own[: len(local)] == local, "a route never goes back"
        assert len(own) > len(local) > 0
        assert flushed[route.name] == local, "all that the objects lack is in files"


def _tables(entry: Entry) -> list[str]:
    return [route.name for route in entry.routes]
