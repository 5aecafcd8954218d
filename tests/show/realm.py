"""The place of the show: daemons on one store, each with its own small disk, behind TLS and tokens.

    daemon a ─ disk a ┐
    daemon b ─ disk b ┼─▶ a proxy that fails on demand ─▶ an S3 server
    daemon c ─ disk c ┘

Only the S3 server is a stand-in: certificates, tokens, the file system that can fill up, and the
processes are real.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, cast

from ingester.client import Client, ConnectionOptions, RetryPolicy
from persist.store import open_store
from tests.crash.store_proxy import StoreProxy
from tests.crash.worlds import DiskWorld
from tests.drivers.certificates import Authority
from tests.drivers.daemon import ROOT, Daemon, DaemonEnded
from tests.drivers.ports import free_port
from tests.drivers.s3_server import S3Server
from tests.drivers.tokens import Tokens

PATIENT = RetryPolicy(for_s=90.0, max_delay_s=1.0)
STORE = "s3://lake/show"


class Member:
    """One daemon: its disk, its port, and its process, which may be restarted.

    Attributes:
        disk: Where its data directory is.
        known: Whether clients are told of it.
        lost: Copies of lost data directories, which prove their contents.
    """

    def __init__(self, name: str, disk: DiskWorld) -> None:
        self.name = name
        self.disk = disk
        self.known = True
        self.lost: list[Path] = []
        self.daemon: Daemon | None = None
        self.port = free_port()

    @property
    def endpoint(self) -> str:
        """The address for clients."""
        return f"grpc+tls://127.0.0.1:{self.port}"

    @property
    def running(self) -> Daemon:
        """The running process."""
        assert self.daemon is not None, self.name
        return self.daemon


class Realm:
    """All daemons, and their common parts. Closing ``stack`` ends them."""

    def __init__(self, folder: Path, stack: ExitStack, *, max_age: str, seed: int) -> None:
        self.folder = folder
        self.members: dict[str, Member] = {}
        self._stack = stack
        self._random = Random(seed)
        self._server = stack.enter_context(S3Server.start())
        self._server.make_bucket("lake")
        self._store = open_store(STORE, **self._server.storage_options)
        self.proxy = StoreProxy(self._server.url, seed)
        stack.callback(self.proxy.close)
        self._authority = Authority(folder / "authority")
        self._pair = self._authority.issue("daemon")
        self._tokens = Tokens(folder / "tokens.json")
        self._tokens.add("load", "show:read,write")
        self._tokens.add("operator", "*:admin")
        self._config = folder / "ingester.toml"
        options = self._server.storage_options | {"endpoint_url": self.proxy.url}
        options |= {"connect_timeout_s": 2.0, "read_timeout_s": 5.0}
        lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
        self._config.write_text(f'store = "{STORE}"\n[store_options]\n' + "\n".join(lines))
        self._settings: dict[str, object] = {
            "tls__cert": self._pair.cert,
            "tls__key": self._pair.key,
            "auth__tokens": self._tokens.path,
            "persist__max_age": max_age,
            "wal__segment_bytes": "4MiB",
            "manifest__refresh": "500ms",
            "memory__limit": "512MiB",
        }

    def start(self, name: str, *arguments: str) -> Member:
        """Start a new daemon or restart an earlier one."""
        member = self.members.get(name)
        if member is None:
            disk = DiskWorld(self.folder / name, self._random)
            self._stack.enter_context(disk)
            member = self.members[name] = Member(name, disk)
            self._stack.callback(self._kill, member)
        member.known = True
        member.daemon = Daemon.start(
            member.disk.data_dir,
            arguments=(
                "--config", str(self._config),
                "--flight", f"127.0.0.1:{member.port}",
                *arguments,
            ),
            id=name,
            **cast(Any, self._settings),
        )  # fmt: skip
        return member

    def refused(self, name: str) -> str:
        """Start a daemon that refuses to start; return its message."""
        try:
            self.start(name)
        except DaemonEnded as exc:
            return f"exit code {exc.code}: {exc.stderr.strip().splitlines()[-1][:1500]}"
        return ""

    def running(self) -> list[Member]:
        """The running daemons."""
        return [member for member in self.members.values() if member.daemon is not None]

    def endpoints(self) -> list[str]:
        """The addresses of the daemons that clients are told of."""
        return [member.endpoint for member in self.members.values() if member.known]

    def client(self, *endpoints: str, who: str = "load", retry: RetryPolicy = PATIENT) -> Client:
        """A client of these daemons, or of all."""
        token = self._tokens.secret[who]
        options = ConnectionOptions(tls_ca=str(self._authority.path), token=token)
        everywhere = endpoints or tuple(self.endpoints())
        named = everywhere[0] if len(everywhere) == 1 else list(everywhere)
        return Client(named, options=options, retry=retry, timeout_s=20)

    def kill(self, name: str) -> None:
        """``kill -9``."""
        self.members[name].running.kill()

    def lose_disk(self, name: str) -> None:
        """Kill a daemon and delete its data directory; a copy of it is kept as evidence."""
        member = self.members[name]
        member.running.kill()
        evidence = self.folder / f"lost-{name}-{len(member.lost)}"
        shutil.copytree(member.disk.data_dir, evidence)
        member.lost.append(evidence)
        shutil.rmtree(member.disk.data_dir)

    def renew_certificates(self) -> None:
        """Replace the key and certificate in use."""
        self._authority.issue("daemon")

    def adopt(self, folder: Path) -> str:
        """Adopt the log of a data directory into the store; return the command's output."""
        command = [sys.executable, "-m", "ingester", "wal", "adopt", str(folder)]
        command += ["--config", str(self._config), "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        # 1: rows of a table with a primary key are refused, as another epoch has written to it.
        if done.returncode not in (0, 1) or "Traceback" in done.stderr:
            raise AssertionError(f"wal adopt ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def upkeep_jobs(self, namespace: str, retain: str, grace: str) -> tuple[list[str], list[str]]:
        """Commands that compact a namespace's tables, and that delete the replaced files."""
        compact = [sys.executable, "-m", "ingester.spark.compact", STORE, namespace]
        for name, value in self._server.storage_options.items():
            compact += ["--store-option", f"{name}={value}"]
        clean = [sys.executable, "-m", "ingester", "manifest", "gc", STORE, namespace]
        clean += ["--retain", retain, "--orphan-grace", grace, "--config", str(self._config)]
        return compact, clean

    def store_files(self) -> tuple[int, int]:
        """The numbers of the store's data files and of all objects, bypassing the proxy."""
        paths = [each.path for each in self._store.list("")]
        return sum(path.endswith(".parquet") for path in paths), len(paths)

    def errors(self) -> list[str]:
        """The daemons' logged errors, the last lines of each."""
        return self._logged(lambda line: "error" in line.lower(), 5)

    def moves(self, until: datetime) -> list[str]:
        """The logged moves of origins in the two minutes before a time."""
        first, last = ((until - timedelta(minutes=each)).isoformat() for each in (2, 0))

        def is_one(line: str) -> bool:
            cut = line.partition('"at": "')[2]
            return '"origin taken' in line and first <= cut[: len(first)] <= last

        return self._logged(is_one, 50)

    def _logged(self, wanted: Callable[[str], bool], most: int) -> list[str]:
        told = []
        for member in self.members.values():
            file = member.disk.data_dir.with_name(f"{member.disk.data_dir.name}.stderr")
            lines = file.read_text(errors="replace").splitlines() if file.exists() else []
            chosen = [line for line in lines if wanted(line)]
            told += [f"log of {member.name}: {line[:6000]}" for line in chosen[-most:]]
        return told

    def leave(self, name: str) -> int:
        """Send SIGTERM and return the exit code. The daemon is no longer listed as running."""
        member = self.members[name]
        code = member.running.terminate()
        member.daemon = None
        return code

    @staticmethod
    def _kill(member: Member) -> None:
        if member.daemon is not None:
            member.daemon.kill()
