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
AT = "2026-11-26T08:10:00Z"
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


def a_push(**changed: Any) -> dict[str, Any]:
    """A push that waits in its second region, as `/api/status` has it."""
    gate = {"hook": "MinimumDelay", "reason": "7 minutes to go"}
    step = {"method": "pre_version_swap", "since": AT, "next_at": AT, "waits": [gate]}
    eu = {"name": "eu", "status": "SERVING", "since": AT, "table_version": 8, "previous": 7}
    us = {"name": "us", "status": "WAITING", "since": AT, "table_version": 3, "previous": None}
    rest: dict[str, Any] = {"reason": "", "step": None, "lagging": [], "unreachable_since": None}
    regions = [{**rest, **eu}, {**rest, **us, "step": step, "lagging": ["<b>report</b>"]}]
    push: dict[str, Any] = {
        **{"push_id": "nightly", "namespace": "shop", "table": "visits", "order": "in_order"},
        **{"target": None, "status": "WAITING", "since": AT, "began_at": AT, "ended_at": None},
        **{"ending": None, "step": None, "unreachable_since": None, "regions": regions},
        "events": [{"at": AT, "region": "eu", "what": "SERVING"}],
        "kept_in": {"region": "eu", "url": "s3://lake/eu"},
        **{"leader": {"controller": "batch-7", "at": AT}, "led": True, "told_s": 3.0},
    }
    return {**push, **changed}


def test_a_push_is_shown_with_its_regions_and_who_is_waited_for() -> None:
    page = shown(example(pushes=[a_push()]))["pushes"]
    assert "shop.visits: push nightly" in page
    assert "v8 (before: v7)" in page and "v3" in page
    assert "followers: <b>report</b>" in page  # as text: elements have no other children here
    assert "pre_version_swap waits (MinimumDelay: 7 minutes to go)" in page
    assert "asked again at 2026-11-26 08:10:00 Z" in page
    assert "eu:  SERVING" in page
    assert "Nobody leads it" not in page
    left = shown(example(pushes=[a_push(led=False, told_s=312.0)]))["pushes"]
    assert "Nobody leads it: last told of 5.20 min ago." in left


def test_pushes_that_have_ended_are_few_words_and_what_cannot_be_read_is_named() -> None:
    ending = {"kind": "rollback", "reason": "nulls in price", "at": AT}
    ended = [a_push(push_id=f"p{n}", ended_at=AT, ending=ending, led=False) for n in range(3)]
    unreadable = [{"path": "_push_status/x", "reason": "it is no push status"}]
    reading = {"read_at": AT, "failure": "store away", "left_out": 7, "unreadable": unreadable}
    page = shown(example(pushes=ended, push_reading=reading))["pushes"]
    assert page.count("Version") == 1, "one is shown in full"
    assert page.count("rollback: nulls in price") == 2
    assert "Not read since 2026-11-26 08:10:00 Z: store away" in page
    assert "_push_status/x cannot be shown: it is no push status" in page
    assert "7 older ones are not shown" in page


def test_a_daemon_without_pushes_and_an_older_one_have_no_card_of_them() -> None:
    status = example()
    assert "push" not in shown(status).get("pushes", "")
    del status["pushes"], status["push_reading"]
    assert shown(status)["lost"] == ""


def test_followers_are_shown_with_what_they_show_and_have_prepared() -> None:
    one: dict[str, Any] = {"namespace": "shop", "table": "visits", "table_version": 7}
    followers = [
        {**one, "name": "<b>lost</b>", "alive": False, "prepared": []},
        {**one, "name": "reports", "alive": True, "prepared": [8, 9]},
    ]
    page = shown(example(followers=followers))["followers"]
    assert "shop.visits reports yes v7 v8, v9 shop.visits <b>lost</b> no v7" in page
    many = [{**followers[1], "name": f"f{number}"} for number in range(103)]
    assert "3 more in /api/status." in shown(example(followers=many))["followers"]
    status = example()
    del status["followers"]
    assert shown(status)["lost"] == "", "an older daemon says nothing of them"
