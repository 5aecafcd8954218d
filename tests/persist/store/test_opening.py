"""Which URLs open a store, and which stores are refused at start-up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from persist.store import (
    AlreadyExists,
    ObjectStore,
    PutInfo,
    StoreUnavailable,
    StoreUnsuitable,
    check_store,
    open_store,
)
from persist.store.generic import FsspecStore
from persist.store.local import LocalStore

if TYPE_CHECKING:
    from typing_extensions import Buffer


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file:///lake", "file:///lake"),
        ("file:///lake/", "file:///lake"),
        ("file:/lake", "file:///lake"),
        ("file://localhost/lake", "file:///lake"),
        ("/lake/50%25 off", "file:///lake/50%25 off"),
        ("s3://bucket", "s3://bucket"),
        ("s3a://bucket/some/prefix/", "s3://bucket/some/prefix"),
    ],
)
def test_urls_are_normalised(url: str, expected: str) -> None:
    assert open_store(url).url == expected


def test_a_relative_path_starts_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("lake", "./lake", "file://./lake", "file://lake"):
        assert open_store(url).url == f"file://{tmp_path}/lake"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://lake", "memory is not durable"),
        ("sftp-no-such://lake", "no file system"),
        ("simplecache::s3://bucket", "chained"),
    ],
)
def test_stores_that_cannot_keep_a_manifest_safe_are_refused(url: str, message: str) -> None:
    with pytest.raises(StoreUnsuitable, match=message):
        open_store(url)


def test_a_file_system_that_checks_then_writes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnsuitable, match="LocalFileSystem cannot create"):
        FsspecStore(LocalFileSystem(), str(tmp_path), "other://lake")


@pytest.mark.parametrize(
    "url", ["s3://key:hunter2@bucket/x", "http://user:hunter2@host/x::y", "nope://u:hunter2@h/x"]
)
def test_credentials_in_a_url_never_reach_a_message(url: str) -> None:
    with pytest.raises((ValueError, StoreUnsuitable)) as refused:
        open_store(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"endpoint_url": "minio:9000"}, "Invalid endpoint: minio:9000.*http://"),
        ({"endpoint_url": "http://127.0.0.1:99999"}, "99999"),
        ({"profile": "no-such"}, "no-such"),
        ({"region": "eu west"}, "'eu west'"),
        ({"config_kwargs": {"no_such": 1}}, "'no_such'"),
    ],
)
def test_settings_without_a_valid_client_are_not_an_unreachable_store(
    options: dict[str, Any], named: str
) -> None:
    given = {"endpoint_url": "http://127.0.0.1:1", "key": "k", "secret": "s"}
    if "profile" in options:
        given = {}
    with pytest.raises(StoreUnsuitable, match=named):
        open_store("s3://bucket", **given | options).get("a")


def test_unknown_options_are_named() -> None:
    with pytest.raises(ValueError, match="endpoint_ulr"):
        open_store("s3://bucket", endpoint_ulr="http://127.0.0.1:1")
    with pytest.raises(ValueError, match="store options"):
        open_store("file:///lake", key="x")
    with pytest.raises(ValueError, match="endpoint_url must not carry") as refused:
        open_store("s3://bucket", endpoint_url="http://key:hunter2@127.0.0.1:1")
    assert "hunter2" not in str(refused.value)


class IgnoresTheCondition(LocalStore):
    """Acts like a server that accepts If-None-Match and ignores it."""

    def create(self, path: str, data: bytes) -> PutInfo:  # type: ignore[override]
        return self.put(path, data)


class RefusesButOverwrites(LocalStore):
    """Acts like a gateway that checks the condition after the write."""

    def create(self, path: str, data: bytes) -> PutInfo:  # type: ignore[override]
        there = self.exists(path)
        info = self.put(path, data)
        if there:
            raise AlreadyExists(path)
        return info


class LosesWrites(LocalStore):
    """Acts like a cache that keeps returning old content."""

    def put(self, path: str, data: bytes) -> PutInfo:  # type: ignore[override]
        info = super().put(path, b"first")
        return PutInfo(len(data), info.at)


class BecomesUnreachable(LocalStore):
    """Reachable for a put, unreachable for a create."""

    def create(self, path: str, data: Buffer) -> PutInfo:
        raise StoreUnavailable("away")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (IgnoresTheCondition, "ignores the condition"),
        (RefusesButOverwrites, "overwrites the object"),
        (LosesWrites, "reads back differently"),
    ],
)
def test_the_start_up_probe_refuses_a_store_by_name(
    tmp_path: Path, kind: type[LocalStore], message: str
) -> None:
    store: ObjectStore = kind(tmp_path)
    with pytest.raises(StoreUnsuitable, match=message) as refused:
        check_store(store)
    assert str(tmp_path) in str(refused.value)
    assert list(store.list("")) == []


def test_the_start_up_probe_does_not_refuse_an_unreachable_store(tmp_path: Path) -> None:
    store = BecomesUnreachable(tmp_path)
    with pytest.raises(StoreUnavailable):
        check_store(store)
    assert list(store.list("")) == []
