"""Metrics as a scraper reads them."""

import dataclasses
import re
import threading
from typing import get_args

import msgspec
import pytest
import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ingester.buffer import Why
from ingester.errors import ERRORS
from ingester.observability import metrics as metrics_module
from ingester.observability.facts import Facts
from ingester.observability.gauges import GaugeCollector, Scrape
from ingester.observability.metrics import FREEZE_REASONS, OTHER, REFUSAL_CODES, Metrics
from ingester.observability.status import (
    Admission,
    Buffered,
    LogStatus,
    LostOperations,
    Memory,
    StoreLogStatus,
    StreamStatus,
)
from persist.store import StoreWatch
from tests.observability.test_alarms import IDENTITY


def scrape(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Read every sample by name and labels."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return scrape(registry)[(name, tuple(sorted(labels.items())))]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_what_happens_to_a_table_is_counted_under_its_name(registry: CollectorRegistry) -> None:
    table = Metrics(registry).table("sensors", "readings")
    table.wrote(10, 400)
    table.wrote(5, 200)
    table.saw_duplicate()
    table.queried()
    table.answered(7, 300)
    table.persisted(2, 15, 90)
    expected = {
        "operations": 2,
        "rows": 15,
        "bytes": 600,
        "duplicates": 1,
        "queries": 1,
        "query_rows": 7,
        "query_bytes": 300,
        "persisted_files": 2,
        "persisted_rows": 15,
        "persisted_bytes": 90,
    }
    for name, value in expected.items():
        sample = f"ingester_{name}_total"
        assert total(registry, sample, namespace="sensors", table="readings") == value


def test_tables_beyond_the_bound_share_one_label(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "MAX_TABLES", 3)
    metrics = Metrics(registry)
    for number in range(10):
        metrics.table("n", f"t{number}").wrote(1, 8)
    rows = {
        key: value for key, value in scrape(registry).items() if key[0] == "ingester_rows_total"
    }
    assert len(rows) == 4
    assert total(registry, "ingester_rows_total", namespace=OTHER, table=OTHER) == 7
    assert sum(rows.values()) == 10


def test_a_table_has_one_set_of_counters_also_when_threads_meet(
    registry: CollectorRegistry,
) -> None:
    metrics = Metrics(registry)
    meet = threading.Barrier(8)

    def write() -> None:
        meet.wait(10)
        for _ in range(100):
            metrics.table("n", "t").wrote(1, 8)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert metrics.table("n", "t") is metrics.table("n", "t")
    assert total(registry, "ingester_rows_total", namespace="n", table="t") == 800


def test_every_refusal_code_is_there_from_the_start_and_an_unknown_one_is_internal(
    registry: CollectorRegistry,
) -> None:
    metrics = Metrics(registry)
    metrics.refused("memory")
    metrics.refused("no such code")
    counts = {code: total(registry, "ingester_refusals_total", code=code) for code in REFUSAL_CODES}
    assert {code: count for code, count in counts.items() if count} == {"memory": 1, "internal": 1}


def test_the_codes_are_those_of_the_error_table() -> None:
    assert set(REFUSAL_CODES) == {kind.code for kind in ERRORS.values()}
    assert get_args(Why) == FREEZE_REASONS


def test_histograms_and_plain_counters_take_what_the_daemon_tells(
    registry: CollectorRegistry,
) -> None:
    metrics = Metrics(registry)
    metrics.acknowledged(0.0012)
    metrics.group_synced(3, 4096, 0.0007)
    metrics.persist_finished(0.02, 1.4)
    metrics.persist_failed()
    metrics.first_batch_sent(0.004)
    metrics.segments_removed(2)
    metrics.tail_cut(17)
    metrics.replayed(9)
    metrics.spilled(1024)
    metrics.stream_timed_out()
    expected = {
        "ack_seconds_sum": 0.0012,
        "group_operations_sum": 3,
        "sync_seconds_sum": 0.0007,
        "log_written_bytes_total": 4096,
        "persist_queued_seconds_sum": 0.02,
        "persist_active_seconds_sum": 1.4,
        "persist_total_seconds_sum": 1.42,
        "persist_failed_attempts_total": 1,
        "query_first_batch_seconds_sum": 0.004,
        "log_segments_removed_total": 2,
        "log_torn_bytes_total": 17,
        "replayed_operations_total": 9,
        "spilled_bytes_total": 1024,
        "query_timeouts_total": 1,
    }
    assert {name: total(registry, f"ingester_{name}") for name in expected} == expected
    assert total(registry, "ingester_ack_seconds_bucket", le="0.002") == 1
    assert total(registry, "ingester_ack_seconds_bucket", le="0.001") == 0


def scraped(segments: int = 0, streams_open: int = 0) -> Scrape:
    memory = Memory(
        used_bytes=12,
        limit_bytes=100,
        low_bytes=50,
        high_bytes=90,
        by_kind={"buffer": 5, "frozen": 7},
    )
    facts = Facts(
        identity=IDENTITY,
        admission=Admission(accepts_writes=True, reasons=[], memory=memory),
        log=LogStatus(segments=segments),
        streams=StreamStatus(open=streams_open),
    )
    return Scrape(
        facts=facts,
        alarms=(),
        requests=StoreWatch().tally(),
        answers={},
        buffered=Buffered(rows=3),
    )


def test_gauges_are_read_once_per_scrape_and_not_before(registry: CollectorRegistry) -> None:
    asked: list[int] = []

    def ask() -> Scrape:
        asked.append(1)
        return scraped(streams_open=len(asked))

    registry.register(GaugeCollector(ask))
    assert not asked
    samples = scrape(registry)
    assert len(asked) == 1
    assert samples[("ingester_memory_used_bytes", (("kind", "frozen"),))] == 7
    assert samples[("ingester_memory_limit_bytes", ())] == 100
    assert samples[("ingester_buffered_rows", ())] == 3
    assert samples[("ingester_accepts_writes", ())] == 1
    assert total(registry, "ingester_streams_open") == 2


def test_the_log_in_the_store_has_its_puts_what_waits_and_what_is_lost(
    registry: CollectorRegistry,
) -> None:
    lost = [
        LostOperations(namespace="n", table=table, epoch=3, operations=count)
        for table, count in (("t", 5), ("u", 2))
    ]
    store_log = StoreLogStatus(
        state="failing",
        objects=4,
        bytes=700,
        puts=9,
        put_bytes=4096,
        put_s=0.5,
        waiting_bytes=640,
        oldest_waiting_s=1.5,
        failed_puts=2,
        lost=lost,
    )
    whole = scraped()
    facts = msgspec.structs.replace(whole.facts, store_log=store_log)
    registry.register(GaugeCollector(lambda: dataclasses.replace(whole, facts=facts)))
    samples = scrape(registry)
    expected = {
        "store_log_objects": 4,
        "store_log_bytes": 700,
        "store_log_puts_total": 9,
        "store_log_put_bytes_total": 4096,
        "store_log_put_seconds_total": 0.5,
        "store_log_failed_puts_total": 2,
        "store_log_waiting_bytes": 640,
        "store_log_oldest_waiting_seconds": 1.5,
        "lost_operations": 7,
    }
    assert {name: samples[(f"ingester_{name}", ())] for name in expected} == expected


def test_gauges_are_read_on_the_loop_also_when_a_thread_scrapes(
    registry: CollectorRegistry,
) -> None:
    asked_on: list[bool] = []

    def ask() -> Scrape:
        asked_on.append(trio.lowlevel.in_trio_run())
        return scraped(segments=3)

    async def scrape_in_a_thread() -> float:
        registry.register(GaugeCollector(ask))
        return await trio.to_thread.run_sync(total, registry, "ingester_log_segments")

    assert trio.run(scrape_in_a_thread) == 3
    assert asked_on == [True]


def test_names_say_their_unit_and_every_metric_has_help(registry: CollectorRegistry) -> None:
    Metrics(registry)
    registry.register(GaugeCollector(scraped))
    families = [
        family
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        if family.name.startswith("ingester_") and not family.name.endswith("_created")
    ]
    assert len(families) > 30
    for family in families:
        assert family.documentation, family.name
        assert re.fullmatch(r"ingester(_[a-z]+)+", family.name), family.name
        if family.type == "histogram":
            assert family.name.endswith(("_seconds", "_operations")), family.name
