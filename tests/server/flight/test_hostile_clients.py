"""Many hostile clients at once: each request is refused by name, and other clients are served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import ROOT, Daemon
from tests.drivers.wire import (
    ARROW_AND_FLIGHT,
    Json,
    act,
    create,
    extra,
    numbers,
    put,
    query,
    rows,
    ticket,
)
from tests.server.flight.hostile import WIDE

SECONDS = float(os.environ.get("INGESTER_TEST_HOSTILE_SECONDS", "12"))
EACH = 4
"""Number of clients of each kind."""
PATIENCE_S = 10.0
"""Longest time that another client's write or query may take; the attackers use this machine
too."""
BYSTANDER = ("by", "stander")

KINDS = (
    ("one buffer", "many buffers", "dictionaries", "nested nulls"),
    ("as large as may be", "metadata", "whole message", "narrow"),
)


@contextmanager
def _attacks(daemon: Daemon) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "tests.server.flight.hostile", daemon.flight]
    command += [str(SECONDS), str(EACH)]
    attacks = [
        subprocess.Popen([*command, *kinds], cwd=ROOT, stdout=subprocess.PIPE) for kinds in KINDS
    ]
    try:
        yield attacks
    finally:
        for attack in attacks:
            attack.kill()
            attack.wait()
            assert attack.stdout is not None
            attack.stdout.close()


@contextmanager
def _used_meanwhile(daemon: Daemon) -> Iterator[None]:
    """Query and flush the attackers' tables during the block."""
    over = threading.Event()

    def use() -> None:
        with fl.connect(daemon.flight) as client:
            while not over.wait(0.2) and daemon.process.poll() is None:
                with suppress(*ARROW_AND_FLIGHT):
                    act(client, "persist", namespace="hostile", timeout_s=10.0)
                for table in ("wide", "f0", "f1"):
                    with suppress(*ARROW_AND_FLIGHT):
                        for chunk in client.do_get(ticket(("hostile", table))):
                            assert chunk.data.num_rows
                            if over.is_set():
                                break

    user = threading.Thread(target=use)
    user.start()
    try:
        yield
    finally:
        over.set()
        user.join()


def _write_and_ask(client: fl.FlightClient, first: int) -> tuple[float, float]:
    """Seconds for a write, including retries, and for a query."""
    began = time.monotonic()
    while True:
        try:
            put(client, BYSTANDER, numbers(first, 1))
            break
        except fl.FlightUnavailableError as error:
            if extra(error)["code"] != "memory" or time.monotonic() - began > PATIENCE_S:
                raise
            time.sleep(0.05)
    wrote = time.monotonic()
    assert query(client, BYSTANDER, columns=[]).num_rows == first + 1
    return wrote - began, time.monotonic() - wrote


@pytest.mark.slow
def test_the_worst_clients_are_refused_by_name_and_others_answered(tmp_path: Path) -> None:
    wide = pa.schema([(f"c{number}", pa.int64()) for number in range(WIDE)])
    outcomes: dict[str, Json] = {}
    with (
        Daemon.start(tmp_path / "d", memory__limit="512MiB", persist__max_age="3s") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        create(client, ("hostile", "wide"), wide)
        took = [_write_and_ask(client, 0)]
        with _used_meanwhile(daemon), _attacks(daemon) as attacks:
            while any(attack.poll() is None for attack in attacks):
                took.append(_write_and_ask(client, len(took)))
            for attack in attacks:
                outcomes |= json.loads(attack.communicate()[0])
        act(client, "persist", timeout_s=60.0)
        assert rows(client, BYSTANDER) == list(range(len(took)))
    assert max(max(pair) for pair in took) < PATIENCE_S
    _check(outcomes)


def _check(outcomes: dict[str, Json]) -> None:
    """Every oversized request was refused by name."""
    too_large, no_room = "batch has ", "memory"
    assert outcomes["one buffer"].keys() <= {too_large, no_room}
    assert outcomes["many buffers"].keys() <= {too_large, no_room}
    assert outcomes["as large as may be"].keys() <= {"ok", no_room}
    assert outcomes["dictionaries"].keys() == {"batch of "}
    assert outcomes["nested nulls"].keys() == {
        "columns ['n'] have no type yet (null, or null inside)"
    }
    assert outcomes["metadata"].keys() == {
        "app_metadata has ",
        "the stream's schema has ",
        "descriptor path has ",
        "ticket has ",
    }
    assert outcomes["narrow"].keys() <= {"ok", no_room}
    assert outcomes["whole message"].keys() == {"action body has "}
