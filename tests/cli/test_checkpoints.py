"""``ingester checkpoints``: list and delete checkpoints, and refuse unknown partitions."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from ingester.client import Client
from tests.cli.conftest import Run, check_refused
from tests.drivers.daemon import Daemon

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture
def kept(served: Daemon, namespace: str) -> str:
    """A namespace with two tables: one has a durable and a logged state, the other none."""
    with Client(served.flight) as client:
        for table in ("visits", "empty"):
            client.create_table(namespace, table, SCHEMA)
        client.put_checkpoint(namespace, "visits", "topic-0", b"x" * 2048, b"shared")
        client.persist(namespace, "visits")
        client.put_checkpoint(namespace, "visits", "topic-1", b"")
    return namespace


def test_checkpoints_are_listed_with_size_age_and_place(run: Run, kept: str) -> None:
    lines = run("checkpoints", kept).stdout.decode().splitlines()
    assert len(lines) == 3
    assert lines[0].split() == [
        *["namespace", "table", "partition", "size", "shared", "age", "kept", "origin"]
    ]
    assert "topic-0" in lines[1]
    assert "2.0 KiB" in lines[1]
    assert "6 B" in lines[1]
    assert "durable" in lines[1]
    assert "0 B" in lines[2]
    assert "in the log" in lines[2]
    everywhere = json.loads(run("checkpoints", "--json").stdout)
    own = json.loads(run("checkpoints", kept, "visits", "--json").stdout)
    assert [each for each in everywhere if each["namespace"] == kept] == own
    assert [(each["partition"], each["bytes"], each["durable"]) for each in own] == [
        ("topic-0", 2048, True),
        ("topic-1", 0, False),
    ]
    assert run("checkpoints", kept, "empty").stdout == b"no checkpoints\n"


def test_only_the_named_checkpoint_is_deleted(run: Run, kept: str) -> None:
    done = run("checkpoints", kept, "visits", "--delete", "topic-0")
    assert done.stdout.decode().startswith(
        f"deleted checkpoint 'topic-0' of {kept}/visits (2.0 KiB)"
    )
    own = json.loads(run("checkpoints", kept, "visits", "--json").stdout)
    assert [each["partition"] for each in own] == ["topic-1"]
    again = run("checkpoints", kept, "visits", "--delete", "topic-0")
    check_refused(again, 1, "has no checkpoint 'topic-0'; did you mean 'topic-1'?")
    deleted = run("checkpoints", kept, "visits", "--delete", "topic-1", "--json")
    assert json.loads(deleted.stdout)["partition"] == "topic-1"


def test_a_missing_checkpoint_is_reported_with_a_hint(run: Run, kept: str) -> None:
    other = run("checkpoints", kept, "visits", "--delete", "orders.csv")
    check_refused(other, 1, "has no checkpoint 'orders.csv'; it has 'topic-0', 'topic-1'")
    none = run("checkpoints", kept, "empty", "--delete", "p")
    check_refused(none, 1, f"table {kept}/empty has no checkpoints")
    check_refused(run("checkpoints", kept, "nowhere"), 1, "nowhere")
    check_refused(run("checkpoints", kept, "nowhere", "--delete", "p"), 1, "nowhere")
    usage = run("checkpoints", kept, "--delete", "p")
    check_refused(usage, 2, "--delete PARTITION needs NAMESPACE and TABLE")
