"""Three regions with real parts: three stores, one of them S3, three daemons, a DuckDB follower.

eu     a folder      goes first: bad editions are found here
us     S3
asia   a folder      a follower keeps a copy in DuckDB
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ingester.client import Client
from ingester.pushes.config import PushConfig, read_push_config
from persist.store import ObjectStore, open_store
from tests.drivers.daemon import ROOT, Daemon
from tests.drivers.s3_server import S3Server
from tests.push.rows import NAMESPACE, SCHEMA, TABLE

BUCKET = "lake"
NAMES = ("eu", "us", "asia")
DELAY_S = 1.0

CONFIG = """
[pushes]
order = "in_order"
on_failure = "rollback"

[hooks]
classes = [
    "ingester.pushes.shipped:MinimumDelay",
    "tests.push.some_hooks:StatisticsBeforeTheRest",
]
wait_interval = "{wait}s"

[hooks.config]
"minimum_delay.delay" = "{delay}s"
"statistics.answer" = "rollback"
"statistics.row_loss" = "0.9"
"""


class RegionParts(NamedTuple):
    """The running parts of one region."""

    name: str
    store: ObjectStore
    daemon: Daemon


class World(NamedTuple):
    """Everything that runs, and the configuration of pushes to it."""

    folder: Path
    regions: tuple[RegionParts, ...]
    config_file: Path

    @property
    def config(self) -> PushConfig:
        """The configuration, read from its file."""
        return read_push_config(self.config_file)

    @property
    def copy(self) -> Path:
        """The file of the follower in the last region."""
        return self.folder / "copy.duckdb"

    def follower(self) -> subprocess.Popen[bytes]:
        """Start the follower of the last region; the caller kills it."""
        command = [sys.executable, "-m", "tests.followers.follower_process"]
        endpoint = self.regions[-1].daemon.flight
        with (self.folder / "follower.stderr").open("ab") as stderr:
            return subprocess.Popen(
                [*command, endpoint, str(self.copy), f"{NAMESPACE}/{TABLE}"],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd=ROOT,
            )


@contextmanager
def three_regions(folder: Path, delay_s: float = DELAY_S) -> Iterator[World]:
    """Run the regions within the ``with`` block; their data stays in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        s3 = stack.enter_context(S3Server.start())
        s3.make_bucket(BUCKET)
        regions, sections = [], []
        for name in NAMES:
            on_s3 = name == "us"
            url = f"s3://{BUCKET}/us" if on_s3 else f"file://{folder / name / 'store'}"
            options: dict[str, Any] = s3.storage_options if on_s3 else {}
            if not on_s3:
                (folder / name / "store").mkdir(parents=True)
            daemon = Daemon.start(
                folder / name / "data",
                environment=s3.environment if on_s3 else {},
                id=name,
                store=url,
                persist__max_age="2s",
                memory__limit="512MiB",
            )
            stack.callback(daemon.kill)
            threading.Thread(target=_settle, args=(daemon.flight,), daemon=True).start()
            regions.append(RegionParts(name, open_store(url, **options), daemon))
            sections.append(_section(name, url, daemon.flight, options))
        file = folder / "push.toml"
        wait_s = max(0.2, delay_s / 4)
        file.write_text("".join(sections) + CONFIG.format(wait=wait_s, delay=delay_s))
        yield World(folder, tuple(regions), file)


def _settle(endpoint: str) -> None:
    """Ask a daemon for followers: its first answer waits for those that have not called yet."""
    with Client(endpoint) as client:
        client.create_table(NAMESPACE, "settled", SCHEMA)
        client.action("followers", {"namespace": NAMESPACE, "table": "settled"})


def _section(name: str, url: str, endpoint: str, options: dict[str, Any]) -> str:
    said = ", ".join(f'{key} = "{value}"' for key, value in options.items())
    return (
        f'[regions.{name}]\nurl = "{url}"\nendpoints = ["{endpoint}"]\n'
        f"store_options = {{ {said} }}\n\n"
    )
