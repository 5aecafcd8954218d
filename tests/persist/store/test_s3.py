"""Errors possible only with a server: odd refusals, lost answers, timeouts, outages."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist.store import (
    AlreadyExists,
    ObjectStore,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsuitable,
    check_store,
    open_store,
)
from persist.store.s3 import S3Client, S3Options, S3Store
from tests.drivers.s3_server import S3Server, Seen
from tests.persist.store.conftest import BUCKET

pytestmark = pytest.mark.s3

CALLS = {
    "put": lambda store: store.put("a", b"x" * 3_000_000),
    "create": lambda store: store.create("a", b"x"),
    "get": lambda store: store.get("a"),
    "open": lambda store: store.open("a"),
    "exists": lambda store: store.exists("a"),
    "list": lambda store: list(store.list("")),
    "delete": lambda store: store.delete("a"),
    "now": lambda store: store.now(),
    "check_store": check_store,
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def bucket_store(s3_server: S3Server, prefix: str) -> ObjectStore:
    return open_store(f"s3://{BUCKET}/{prefix}", **s3_server.storage_options)


@pytest.fixture
def impatient(s3_server: S3Server, prefix: str) -> ObjectStore:
    """A store with a timeout of one second."""
    return open_store(
        f"s3://{BUCKET}/{prefix}",
        **s3_server.storage_options,
        connect_timeout_s=0.5,
        read_timeout_s=0.5,
    )


def seen_of(server: S3Server, prefix: str) -> list[Seen]:
    return [seen for seen in server.requests() if prefix in seen["target"]]


@every_call
def test_with_nothing_listening_every_call_is_unavailable_at_once(call: Any) -> None:
    with S3Server.start() as gone:
        options = gone.storage_options
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as refused:
        call(open_store(f"s3://{BUCKET}", **options))
    assert time.monotonic() - began < 10
    assert S3Server.secret_key not in str(refused.value)


@every_call
def test_a_silent_server_is_unavailable_within_the_time_out(
    s3_server: S3Server, bucket_store: ObjectStore, impatient: ObjectStore, prefix: str, call: Any
) -> None:
    bucket_store.put("a", b"")
    s3_server.fault("hang", times=99)
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            call(impatient)
        # One second, plus the time for 3 MB; check_store makes two more calls for its cleanup.
        assert time.monotonic() - began < 15
    finally:
        s3_server.clear_faults()
    assert bucket_store.exists("a") is not None


def test_a_server_that_comes_back_is_used_again(
    s3_server: S3Server, bucket_store: ObjectStore, prefix: str
) -> None:
    s3_server.fault("unavailable", contains=prefix, times=1)
    with pytest.raises(StoreUnavailable, match="503 SlowDown"):
        bucket_store.put("a", b"x")
    bucket_store.put("a", b"x")
    assert bucket_store.get("a") == b"x"


def test_no_call_repeats_what_the_server_refused(
    s3_server: S3Server, bucket_store: ObjectStore, prefix: str
) -> None:
    s3_server.fault("unavailable", contains=prefix, times=2)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            bucket_store.get("a")
    bucket_store.put("a", b"x")


def test_a_create_repeated_by_aiohttp_after_a_lost_answer_succeeds(
    s3_server: S3Server, bucket_store: ObjectStore, prefix: str
) -> None:
    # aiohttp sends a PUT again when its connection closes without an answer.
    s3_server.fault("lose_answer", method="PUT", contains=prefix)
    bucket_store.create("v/1.commit", b"mine")
    answers = [(seen["method"], seen["status"]) for seen in seen_of(s3_server, prefix)]
    assert answers == [("PUT", 200), ("PUT", 412), ("HEAD", 200)]
    assert bucket_store.get("v/1.commit") == b"mine"


@pytest.mark.parametrize("call", ["put", "create"])
def test_a_write_whose_answers_are_lost_is_unclear_and_can_be_read_back(
    s3_server: S3Server, bucket_store: ObjectStore, prefix: str, call: str
) -> None:
    content = b"mine" * 500_000
    s3_server.fault("lose_answer", method="PUT", contains=prefix, times=99)
    try:
        with pytest.raises(StoreUnavailable):
            getattr(bucket_store, call)("v/1.commit", content)
    finally:
        s3_server.clear_faults()
    assert bucket_store.get("v/1.commit") == content


def test_a_conflict_of_two_conditional_writes_is_tried_again(
    s3_server: S3Server, bucket_store: ObjectStore, prefix: str
) -> None:
    s3_server.fault("conflict", method="PUT", contains=prefix, times=2)
    bucket_store.create("v/1", b"mine")
    assert bucket_store.get("v/1") == b"mine"
    s3_server.fault("conflict", method="PUT", contains=prefix, times=99)
    try:
        with pytest.raises(StoreUnavailable, match="conditional writes"):
            bucket_store.create("v/2", b"mine")
    finally:
        s3_server.clear_faults()


def test_a_bad_request_means_exists_only_if_the_object_exists(
    s3_server: S3Server, bucket_store: ObjectStore, prefix: str
) -> None:
    bucket_store.create("taken", b"first")
    s3_server.fault("invalid", method="PUT", contains=prefix, times=2)
    with pytest.raises(AlreadyExists):
        bucket_store.create("taken", b"second")
    with pytest.raises(StoreError, match="400 InvalidArgument") as refused:
        bucket_store.create("free", b"first")
    assert not isinstance(refused.value, AlreadyExists)


class RepeatingClient(S3Client):
    """Sends every PUT twice, as an HTTP client or proxy does after a broken connection."""

    def call(self, method: str, sends_bytes: int = 0, **arguments: Any) -> dict[str, Any]:
        if method == "put_object":
            super().call(method, sends_bytes, **arguments)
            arguments["Body"].seek(0)
        return super().call(method, sends_bytes, **arguments)


def test_a_create_repeated_by_a_proxy_succeeds(
    s3_server: S3Server, bucket_store: ObjectStore, prefix: str
) -> None:
    options: S3Options = s3_server.storage_options  # type: ignore[assignment]
    repeating = S3Store(BUCKET, prefix, RepeatingClient(options))
    assert repeating.create("v/1", b"same").bytes == 4
    with pytest.raises(AlreadyExists):
        bucket_store.create("v/1", b"same")
    bucket_store.create("v/2", b"same")
    with pytest.raises(AlreadyExists):
        S3Store(BUCKET, prefix, S3Client(options)).create("v/2", b"same")


@pytest.mark.parametrize(("fault", "expected"), [("denied", StoreDenied), ("full", StoreFull)])
@pytest.mark.parametrize("call", ["put", "create"])
def test_refusals_say_who_must_act(
    s3_server: S3Server,
    bucket_store: ObjectStore,
    prefix: str,
    fault: Any,
    expected: type[StoreError],
    call: str,
) -> None:
    s3_server.fault(fault, contains=prefix)
    with pytest.raises(expected, match="as asked") as refused:
        CALLS[call](bucket_store)
    assert type(refused.value) is expected
    assert f"{bucket_store.url}/a" in str(refused.value)


def test_a_missing_bucket_is_named(s3_server: S3Server) -> None:
    store = open_store("s3://no-such-bucket/lake", **s3_server.storage_options)
    for call in (check_store, CALLS["put"], CALLS["create"], CALLS["get"], CALLS["list"]):
        with pytest.raises(StoreUnsuitable, match=r"s3://no-such-bucket/lake.*bucket"):
            call(store)


def test_every_write_is_one_put_however_large(
    s3_server: S3Server, bucket_store: ObjectStore, prefix: str
) -> None:
    large = bytes(12 * 2**20)
    bucket_store.put("put", large)
    bucket_store.create("create", large)
    assert [(seen["method"], seen["target"]) for seen in seen_of(s3_server, prefix)] == [
        ("PUT", f"/{BUCKET}/{prefix}/put"),
        ("PUT", f"/{BUCKET}/{prefix}/create"),
    ]


def test_one_column_is_read_without_fetching_the_file(
    s3_server: S3Server, bucket_store: ObjectStore, prefix: str
) -> None:
    rows = 1_000_000
    table = pa.table({name: pa.array(range(rows)) for name in "abcd"})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="none", use_dictionary=False, row_group_size=rows // 4)
    file_bytes = sink.getvalue().size
    bucket_store.put("table.parquet", sink.getvalue())
    with bucket_store.open("table.parquet") as file:
        group = pq.ParquetFile(file).read_row_group(2, columns=["c"])
    assert group == table.select(["c"]).slice(rows // 2, rows // 4)
    fetched = sum(s["sent_bytes"] for s in seen_of(s3_server, prefix) if s["method"] == "GET")
    # One of sixteen chunks, the footer, and the read-ahead.
    assert fetched < file_bytes / 16 + 2 * 256 * 1024
    assert fetched > rows / 4 * 8


def test_a_file_overwritten_under_its_reader_is_an_error_and_no_mix(
    bucket_store: ObjectStore,
) -> None:
    bucket_store.put("object", b"a" * 2_000_000)
    with bucket_store.open("object") as file:
        assert file.read(1_000_000) == b"a" * 1_000_000
        bucket_store.put("object", b"b" * 2_000_000)
        with pytest.raises(StoreUnavailable, match="412"):
            file.read(1_000_000)


def test_settings_are_also_read_from_the_environment(
    s3_server: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3a://{BUCKET}/{prefix}/")
    store.put("a", b"x")
    assert store.url == f"s3://{BUCKET}/{prefix}"
    assert [seen["target"] for seen in seen_of(s3_server, prefix)] == [f"/{BUCKET}/{prefix}/a"]


def test_a_delayed_server_carries_out_several_requests_at_a_time(
    s3_server: S3Server, bucket_store: ObjectStore
) -> None:
    bucket_store.put("0", b"x")  # connects
    s3_server.delay(0.2)
    try:
        began = time.monotonic()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda name: bucket_store.create(str(name), b"x"), range(1, 9)))
        seconds = time.monotonic() - began
    finally:
        s3_server.delay(0)
    assert 0.2 <= seconds < 8 * 0.2


def test_stores_of_one_bucket_see_only_their_prefix(
    s3_server: S3Server, bucket_store: ObjectStore, prefix: str
) -> None:
    inner = open_store(f"s3://{BUCKET}/{prefix}/in", **s3_server.storage_options)
    inner.put("a", b"")
    bucket_store.put("b", b"")
    bucket_store.put("in0", b"")
    assert [found.path for found in inner.list("")] == ["a"]
    assert [found.path for found in bucket_store.list("")] == ["b", "in/a", "in0"]


def test_folder_markers_of_other_tools_are_not_listed(
    s3_server: S3Server, bucket_store: ObjectStore, prefix: str
) -> None:
    options: S3Options = s3_server.storage_options  # type: ignore[assignment]
    S3Client(options).call("put_object", Bucket=BUCKET, Key=f"{prefix}/folder/")
    bucket_store.put("folder/a", b"")
    assert [found.path for found in bucket_store.list("")] == ["folder/a"]
