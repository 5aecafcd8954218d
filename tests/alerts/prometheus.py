"""Prometheus' own programs: ``promtool``, and a server that scrapes a daemon.

They come from the distribution (``make prometheus``: Debian's package ``prometheus``, unpacked
and not installed). If they are missing, the tests that need them are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.drivers.ports import free_port
from tests.drivers.waiting import until

UNPACKED = Path(__file__).resolve().parents[2] / ".venv" / "prometheus" / "usr" / "bin"
SCRAPE_EVERY = "200ms"


def program(name: str) -> Path | None:
    """Return the path of a program, if it exists."""
    if (UNPACKED / name).exists():
        return UNPACKED / name
    found = shutil.which(name)
    return None if found is None else Path(found)


needs_prometheus = pytest.mark.skipif(
    program("promtool") is None or program("prometheus") is None,
    reason="no Prometheus here: `make prometheus` unpacks Debian's",
)


def promtool(*arguments: object, stdin: bytes = b"") -> str:
    """Return promtool's output; raise AssertionError if it reports a fault."""
    tool = program("promtool")
    assert tool is not None
    done = subprocess.run(
        [tool, *map(str, arguments)], input=stdin, capture_output=True, timeout=120, check=False
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


class Prometheus:
    """A server that scrapes daemons and evaluates rules."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an API answer."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the current series of an expression; raise AssertionError on an error."""
        try:
            found: list[dict[str, Any]] = self.ask("query", query=expr)["result"]
        except urllib.error.HTTPError as exc:
            with exc:
                raise AssertionError(f"{expr}: {exc.read().decode()}") from None
        return found


@contextlib.contextmanager
def scraping(folder: Path, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    """Run a server that scrapes each target (``host:port``) as an instance of the name.

    It is ready, and has scraped each target once, when the block begins.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        {"targets": [address], "labels": {"instance": name}} for name, address in targets.items()
    ]
    config = {
        "global": {"scrape_interval": SCRAPE_EVERY, "scrape_timeout": SCRAPE_EVERY},
        "scrape_configs": [{"job_name": "ingester", "static_configs": jobs}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    server = program("prometheus")
    assert server is not None
    log = (folder / "prometheus.log").open("wb")
    process = subprocess.Popen(
        [
            server,
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ],
        stdout=subprocess.DEVNULL,
        stderr=log,
        env={**os.environ, "GOMAXPROCS": "1"},
    )
    found = Prometheus(f"http://127.0.0.1:{port}")

    def scraped() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(found.url + "/-/ready"):
            return len(found.query('up{job="ingester"} == 1')) == len(targets)
        return False

    try:
        until(scraped, "Prometheus to have scraped every daemon")
        yield found
    finally:
        process.kill()
        process.wait()
        log.close()
