"""A refused start names the wrong setting and the reason, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from ingester.config.settings import ConfigError
from ingester.daemon.listening import check_address
from ingester.daemon.startup import locked
from ingester.server.http.server import ListenError
from persist.store import StoreDenied, StoreError, StoreUnsuitable, open_store
from persist.store.s3_errors import answer_of, to_error
from tests.drivers.daemon import Daemon, DaemonEnded


def test_a_store_that_is_a_file_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DaemonEnded) as error:
        Daemon.start(tmp_path / "data", store=f"file://{tmp_path}/file").kill()
    told = json.loads(error.value.stderr.splitlines()[-1])
    assert error.value.code == 1
    assert told["runbook"] == "cannot-serve"
    assert f"{tmp_path}/file is a file, but the store must be a folder" in told["error"]
    assert "folder is open to everybody" not in error.value.stderr
    store = open_store(f"file://{tmp_path}/file/below")
    for call in (lambda: store.put("a/b", b"x"), lambda: store.get("a"), lambda: store.exists("a")):
        with pytest.raises(StoreUnsuitable, match="is a file"):
            call()


def test_a_port_in_use_is_found_before_anything_is_done(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        # The last occurrence of an option wins.
        arguments = ["--flight", f"127.0.0.1:{port}"]
        with pytest.raises(DaemonEnded) as error:
            Daemon.start(tmp_path / "data", arguments=arguments).kill()
    told = json.loads(error.value.stderr.splitlines()[-1])
    assert error.value.code == 1
    assert f"cannot listen on 127.0.0.1:{port} (Address already in use)" in told["error"]
    assert "--flight" in told["error"]
    assert not (tmp_path / "data" / "store").exists()
    check_address("127.0.0.1", port)
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:1"):
        check_address("192.0.2.1", 1)  # no address of this machine


def test_a_data_directory_that_cannot_be_one_is_named_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(ConfigError, match=r"^data_dir: .*--data-dir") as error, locked(folder):
            pass
        assert str(folder) in str(error.value)
    if os.getuid() == 0:
        return  # root ignores permissions
    (tmp_path / "closed").mkdir(0o500)
    with pytest.raises(ConfigError, match="ermission"), locked(tmp_path / "closed"):
        pass


def test_a_start_that_fails_leaves_nothing_that_it_has_made(tmp_path: Path) -> None:
    def start(folder: Path, makes: str) -> None:
        with locked(folder):
            (folder / "wal").mkdir()
            (folder / makes).write_text("")
            raise KeyError

    with pytest.raises(FileNotFoundError):
        start(tmp_path / "made", "nowhere/file")
    assert not (tmp_path / "made").exists(), "a start that failed leaves nothing"
    with pytest.raises(KeyError):
        start(tmp_path / "used", "ingester.json")
    assert {each.name for each in (tmp_path / "used").iterdir()} == {"LOCK", "ingester.json"}


def test_a_clock_that_is_too_far_off_for_the_server_is_said_to_be() -> None:
    answer: Any = {
        "Error": {"Code": "RequestTimeTooSkewed"},
        "ResponseMetadata": {"HTTPStatusCode": 403},
    }
    refusal = ClientError(answer, "PutObject")
    error: StoreError = to_error(answer_of(refusal), refusal, "s3://lake", "a")
    assert isinstance(error, StoreDenied)
    assert "clocks" in str(error)
