"""What the operator's page shows of a status. Its script runs in node, where that is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.server.http.serving import example_status

PAGE = Path(__file__).parents[3] / "ingester" / "server" / "http" / "page.html"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")


def shown(status: Any) -> dict[str, str]:
    """The text of each part of the page, by its id."""
    assert NODE is not None
    command = [NODE, str(Path(__file__).with_name("page_in_node.js")), str(PAGE)]
    done = subprocess.run(
        command, input=json.dumps(status), capture_output=True, text=True, check=True, timeout=60
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def example(**more: Any) -> dict[str, Any]:
    status: dict[str, Any] = msgspec.to_builtins(example_status())
    return {**status, **more}


def test_a_status_is_shown_without_an_error() -> None:
    page = shown(example())
    assert "Ready: takes writes, answers queries" in page["state"]
    assert page["lost"] == ""
    assert "sensors.readings" in page["tables"]


def test_checkpoints_are_counted_in_all_and_by_table() -> None:
    status = example(checkpoints={"count": 4100, "bytes": 3 << 20, "pending": 2})
    status["tables"][0]["checkpoints"] = {"count": 4099, "bytes": 1, "pending": 2}
    page = shown(status)
    assert "4,100 checkpoints of sources, 3 MiB; 2 not in object storage yet." in page["origins"]
    assert "4,099" in page["tables"]
    durable = shown(example(checkpoints={"count": 1, "bytes": 9, "pending": 0}))
    assert "1 checkpoint of sources, 9 B; all in object storage." in durable["origins"]
    none = shown(example(checkpoints={"count": 0, "bytes": 0, "pending": 0}))
    assert "checkpoint" not in none["origins"]
