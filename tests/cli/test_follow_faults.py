"""``ingester follow`` with faults: another daemon, a full disk, a daemon that stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ingester.client import Client
from tests.cli.conftest import check_refused, run_command
from tests.cli.test_follow import following, says, seen, write
from tests.crash.worlds import FILE_SYSTEM_BYTES
from tests.drivers.daemon import Daemon
from tests.drivers.ports import steady_flight
from tests.drivers.s3_server import S3Server
from tests.drivers.waiting import until
from tests.followers.test_duckdb_file import small_disk

__all__ = ["small_disk"]  # a fixture


def test_a_copy_of_another_daemon_is_reported_and_rebuilt_on_request(tmp_path: Path) -> None:
    asked = ["follow", "follow", "t", "--into", "duckdb:c.duckdb", "--once"]
    for name in ("one", "other"):
        with Daemon.start(tmp_path / name, id=name) as daemon, Client(daemon.flight) as client:
            write(client, "t", 0 if name == "one" else 100)
            done = run_command(*asked, cwd=tmp_path, endpoint=daemon.flight)
            if name == "one":
                assert done.returncode == 0, done.stderr
                continue
            assert done.returncode == 1
            message = done.stderr.decode().splitlines()[-1]
            assert "follows daemon 'one', but 'other' answered" in message
            assert seen(tmp_path / "c.duckdb", "t") == [0, 1, 2]
            again = run_command(*asked, "--anew", cwd=tmp_path, endpoint=daemon.flight)
            assert again.returncode == 0, again.stderr
            assert seen(tmp_path / "c.duckdb", "t") == [100, 101, 102]


def test_a_full_disk_is_waited_for(served: Daemon, small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(FILE_SYSTEM_BYTES - (4 << 20)))
    into = f"duckdb:{small_disk}/c.duckdb"
    with Client(served.flight) as client:
        write(client, "full", 0)
        with following(served, small_disk, "follow", "full", "--into", into) as process:
            says(process, "follow/full: live")
            noise = [os.urandom(64).hex() for _ in range(100_000)]
            client.write("follow", "full", {"id": list(range(10, 100_010)), "host": noise})
            says(process, "follow/full: waiting: .*the disk is full")
            assert seen(small_disk / "c.duckdb", "full")[:3] == [0, 1, 2]
            filler.unlink()
            says(process, "follow/full: live")
            copied = small_disk / "c.duckdb"
            until(lambda: len(seen(copied, "full")) == 100_003, "all rows", 30.0)


def test_a_restarting_daemon_is_waited_for(tmp_path: Path) -> None:
    daemon = Daemon.start(tmp_path / "d", arguments=steady_flight())
    with daemon, Client(daemon.flight) as client:
        write(client, "t", 0)
        with following(daemon, tmp_path, "follow", "t", "--into", "duckdb:c.duckdb") as process:
            says(process, "follow/t: live")
            write(client, "t", 10)
            daemon.kill()
            says(process, "follow/t: waiting: ")
            with daemon.again() as back, Client(back.flight) as writer:
                write(writer, "t", 20)
                says(process, "follow/t: live")
                copied = tmp_path / "c.duckdb"
                until(lambda: len(seen(copied, "t")) == 9, "all rows", 30.0)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


@pytest.mark.s3
def test_a_store_without_its_endpoint_ends_once_with_the_option_that_is_missing(
    tmp_path: Path,
) -> None:
    asked = ["follow", "follow", "t", "--into", "duckdb:c.duckdb", "--once"]
    with S3Server.start() as server:
        server.make_bucket("lake")
        environment, url = server.environment, "s3://lake/prod"
        with (
            Daemon.start(tmp_path / "d", environment=environment, store=url) as daemon,
            Client(daemon.flight) as client,
        ):
            write(client, "t", 0)
            client.persist("follow", "t")

            def follow(*more: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
                variables = environment | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"} | variables
                return run_command(
                    *asked, *more, cwd=tmp_path, endpoint=daemon.flight, stdin=b"", **variables
                )

            refused = follow()
            said = refused.stderr.decode()
            assert refused.returncode == 4, said
            assert "cannot be read from s3://lake/prod: " in said.splitlines()[-1]
            assert "store_options has no endpoint_url" in said.splitlines()[-1]
            (tmp_path / "store.toml").write_text(
                f'[store_options]\nendpoint_url = "{server.url}"\n'
            )
            helped = follow("--config", "store.toml")
            assert helped.returncode == 0, helped.stderr
            assert seen(tmp_path / "c.duckdb", "t") == [0, 1, 2]
            (tmp_path / "c.duckdb").unlink()
            helped = follow(INGESTER_STORE_OPTIONS__ENDPOINT_URL=server.url)
            assert helped.returncode == 0, helped.stderr


def test_a_terminal_shows_a_progress_bar_for_each_table(served: Daemon, tmp_path: Path) -> None:
    with Client(served.flight) as client:
        for table in ("bar1", "bar2"):
            write(client, table, 0)
    command = "ingester follow follow bar1 bar2 --into duckdb:c.duckdb --once"
    python = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        cwd=tmp_path,
        env={**os.environ, "PATH": python, "INGESTER_ENDPOINT": served.flight, "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    said = done.stdout.decode()
    assert done.returncode == 0, said
    assert "follow/bar1" in said
    assert "follow/bar2" in said
    assert "rows put" in said


def test_an_unknown_option_is_a_usage_error(served: Daemon, tmp_path: Path) -> None:
    failed = run_command("follow", "n", "t", "--form", "x", cwd=tmp_path, endpoint=served.flight)
    check_refused(failed, 2, "")
