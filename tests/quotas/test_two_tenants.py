"""Two tenants of a real daemon: a tenant over its quota is refused, the other is not affected."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.s3_server import S3Server
from tests.drivers.waiting import until
from tests.drivers.wire import (
    Json,
    Stream,
    Table,
    act,
    create,
    extra,
    http,
    numbers,
    persist,
    put,
    query,
    rows,
    writing,
)

TEXT = "x" * 100_000
QUOTAS = """
[quotas]
streams = 50
[quotas."rates"]
bytes_per_s = "100KiB"
[quotas."calls"]
requests_per_s = 20
[quotas."small"]
buffer_bytes = "2MiB"
streams = 2
tables = 2
[quotas."parts"]
partitions = 3
"""


def _large(i: int, count: int = 10) -> pa.RecordBatch:
    """A batch of ten rows, about 1 MB."""
    return numbers(i, count, s=pa.array([TEXT] * count))


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The settings file of the daemon with quotas."""
    file = tmp_path_factory.mktemp("settings") / "ingester.toml"
    file.write_text(QUOTAS)
    return file


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, settings: Path) -> Iterator[Daemon]:
    """A daemon with quotas, which flushes only on request."""
    with Daemon.start(
        tmp_path_factory.mktemp("quotas") / "data",
        environment={"INGESTER_CONFIG": str(settings)},
        persist__max_age="1h",
    ) as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[fl.FlightClient]:
    with fl.connect(daemon.flight) as client:
        yield client


def _refused(error: fl.FlightError, quota: str, namespace: str, code: str = "limit") -> Json:
    """Assert that a refusal names the quota's setting and the namespace; returns its JSON."""
    said = extra(error)
    assert (said["code"], said["quota"], said["namespace"]) == (code, quota, namespace)
    assert f'quotas."{namespace}".{quota} is' in said["message"]
    assert said["retry_after_s"] > 0
    return said


def _first_refusal(ask: Callable[[], object]) -> fl.FlightError:
    """Repeat a call until it is refused; returns the refusal."""
    for _ in range(200):
        try:
            ask()
        except fl.FlightUnavailableError as error:
            return error
    raise AssertionError("nothing was refused")


def _namespaces(daemon: Daemon) -> dict[str, Json]:
    found = json.loads(http(f"{daemon.http}/api/status")[2])["namespaces"]
    return {each["namespace"]: each for each in found}


def _others_go_on(client: fl.FlightClient) -> None:
    """Assert that another namespace can still write and query."""
    put(client, ("other", "t"), *(_large(i) for i in range(3)))
    assert query(client, ("other", "t"), columns=[]).num_rows > 0


def test_bytes_in_a_second_are_owed_and_the_mean_holds(
    daemon: Daemon, client: fl.FlightClient
) -> None:
    table = ("rates", "t")
    put(client, table, _large(0))  # a burst of ten seconds passes in one batch
    with pytest.raises(fl.FlightUnavailableError) as refused:
        put(client, table, numbers(10, 1))
    waits = _refused(refused.value, "bytes_per_s", "rates")["retry_after_s"]
    assert 5 < waits < 11
    _others_go_on(client)
    assert rows(client, table) == list(range(10)), "queries go on"
    assert _namespaces(daemon)["rates"]["refused"] == 1


def test_requests_in_a_second_are_counted_of_every_kind(client: fl.FlightClient) -> None:
    table = ("calls", "t")
    put(client, table, numbers(0, 1))
    calls = partial(act, client, "describe_table", namespace="calls", table="t")
    said = _refused(_first_refusal(calls), "requests_per_s", "calls")
    for asks in (lambda: query(client, table), lambda: put(client, table, numbers(1, 1))):
        _refused(_first_refusal(asks), "requests_per_s", "calls")
    _others_go_on(client)
    assert said["retry_after_s"] < 1


def test_buffers_over_the_quota_are_persisted_and_then_there_is_room(
    client: fl.FlightClient,
) -> None:
    table, batches = ("small", "t"), map(_large, range(0, 200, 10))
    refusal = _first_refusal(lambda: put(client, table, next(batches)))
    _refused(refusal, "buffer_bytes", "small", "memory")
    written = 20
    assert rows(client, table) == list(range(written))

    def written_again() -> bool:
        try:
            put(client, table, _large(written))
        except fl.FlightUnavailableError as error:
            _refused(error, "buffer_bytes", "small", "memory")
            return False
        return True

    until(written_again, "nobody has asked for a persist, and it comes")
    assert rows(client, table) == list(range(written + 10))
    _others_go_on(client)


def test_streams_of_each_kind_are_counted_until_they_end(
    daemon: Daemon, client: fl.FlightClient
) -> None:
    with ExitStack() as open_streams:
        for _ in range(2):
            stream = Stream(client, writing(("small", "t")), numbers(0, 1).schema)
            open_streams.enter_context(stream)
            stream.write(numbers(1_000, 1))
        assert _namespaces(daemon)["small"]["writers"] == 2
        with pytest.raises(fl.FlightUnavailableError) as refused:
            put(client, ("small", "t"), numbers(0, 1))
        _refused(refused.value, "streams", "small")
        assert query(client, ("small", "t"), columns=[]).num_rows > 0, "queries count apart"
        _others_go_on(client)
    put(client, ("small", "t"), numbers(1_001, 1))


def test_thousands_of_buffers_of_one_hold_up_anothers_persist_for_a_moment(
    daemon: Daemon, client: fl.FlightClient
) -> None:
    count, table = 1_000, ("many", "t")
    create(client, table, numbers(0, 1).schema, partition_by=["identity(i)"])
    put(client, table, numbers(0, count))
    assert _namespaces(daemon)["many"]["partitions"] == count
    put(client, ("other", "t"), numbers(0, 10))

    def persist_many() -> None:
        with fl.connect(daemon.flight) as own:
            persist(own, table)

    behind = threading.Thread(target=persist_many)
    behind.start()
    try:
        until(lambda: _namespaces(daemon)["many"]["queued_bytes"] > 0, "they are queued")
        persist(client, ("other", "t"))
        # In order of arrival, it would have been flushed with the last of the other partitions.
        assert _namespaces(daemon)["many"]["partitions"] > count // 10
    finally:
        behind.join()
    put(client, table, numbers(0, 1))
    persist(client, table)
    for name, shown in _namespaces(daemon).items():
        if name in ("many", "other"):
            counts = ("bytes", "queued_bytes", "partitions", "writers", "answers")
            assert [shown[count] for count in counts] == [0] * len(counts), name


def test_partitions_over_the_quota_are_persisted_and_then_there_is_room(
    client: fl.FlightClient,
) -> None:
    table = ("parts", "t")
    create(client, table, numbers(0, 1).schema, partition_by=["identity(i)"])
    put(client, table, numbers(0, 3))
    put(client, table, numbers(0, 3))
    with pytest.raises(fl.FlightUnavailableError) as refused:
        put(client, table, numbers(3, 1))
    _refused(refused.value, "partitions", "parts")
    with pytest.raises(pa.ArrowInvalid, match=r'quotas\."parts"\.partitions is 3'):
        put(client, table, numbers(4, 4))

    def written() -> bool:
        try:
            put(client, table, numbers(3, 1))
        except fl.FlightUnavailableError as error:
            _refused(error, "partitions", "parts")
            return False
        return True

    until(written, "nobody has asked for a persist, and it comes")
    assert rows(client, table) == [0, 0, 1, 1, 2, 2, 3]
    _others_go_on(client)


def test_tables_are_made_up_to_the_quota(client: fl.FlightClient) -> None:
    put(client, ("small", "second"), numbers(0, 1))
    third, batch = ("small", "third"), numbers(0, 1)
    for make in (
        lambda: create(client, third, batch.schema),
        lambda: put(client, third, batch),
    ):
        with pytest.raises(fl.FlightUnavailableError) as refused:
            make()
        _refused(refused.value, "tables", "small")
    put(client, ("small", "second"), numbers(1, 1))
    _others_go_on(client)


@pytest.mark.s3
def test_whoever_fills_the_memory_alone_leaves_the_others_their_share(tmp_path: Path) -> None:
    with (
        S3Server.start() as server,
        _away(tmp_path, server) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        acknowledged, refused = _fill(client, ("greedy", "t"))
        assert refused["code"] == "memory"
        assert refused["namespace"] == "greedy"
        assert "more than its share" in refused["message"]
        for number in range(3):
            put(client, ("modest", "t"), _large(number * 10))
        assert rows(client, ("modest", "t")) == list(range(30))
        ready, _, body = http(f"{daemon.http}/health/ready?for=write")
        assert ready == 200, body
        shown = _namespaces(daemon)
        assert shown["greedy"]["over_share"] is True
        assert shown["modest"]["over_share"] is False
        assert shown["greedy"]["refused"] >= 1
        assert shown["modest"]["refused"] == 0
        metrics = http(f"{daemon.http}/metrics")[2].decode()
        assert 'ingester_quota_refused_total{namespace="greedy",quota="share_of_memory"}' in metrics
        (held,) = re.findall(r'ingester_namespace_bytes\{namespace="modest"\} (.*)', metrics)
        assert float(held) == shown["modest"]["bytes"]
        assert rows(client, ("greedy", "t")) == list(range(acknowledged))


def _away(folder: Path, server: S3Server) -> Daemon:
    server.make_bucket("lake")
    daemon = Daemon.start(
        folder / "data",
        environment=server.environment,
        store="s3://lake/fair",
        memory__limit="96MiB",
        persist__max_age="1h",
        persist__max_partition_bytes="4MiB",
    )
    with fl.connect(daemon.flight) as client:
        for namespace in ("greedy", "modest"):
            put(client, (namespace, "t"), _large(0)[:0])
    server.fault("unavailable", method="PUT", contains="fair", times=1_000_000)
    return daemon


def _fill(client: fl.FlightClient, table: Table) -> tuple[int, Json]:
    """Write 1 MB batches until one is refused: (acknowledged rows, the refusal)."""
    for acknowledged in range(0, 2_000, 10):
        try:
            put(client, table, _large(acknowledged))
        except fl.FlightUnavailableError as error:
            return acknowledged, extra(error)
    raise AssertionError("the limit was never reached")


def test_other_quotas_are_taken_up_by_sighup_and_a_wrong_file_changes_nothing(
    daemon: Daemon, client: fl.FlightClient, settings: Path
) -> None:
    def quota_of(namespace: str) -> Any:
        return _namespaces(daemon)[namespace]["quota"]["tables"]

    put(client, ("asked", "t"), numbers(0, 1))
    assert quota_of("asked") == 0
    settings.write_text(QUOTAS + '[quotas."asked"]\ntables = "many"\n')
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "settings not read again" in daemon.stderr_file.read_text(), "it is told")
    assert quota_of("small") == 2
    settings.write_text(QUOTAS + '[quotas."asked"]\ntables = 1\n')
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: quota_of("asked") == 1, "the quota holds")
