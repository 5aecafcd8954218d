"""Data that an earlier version was killed over: all that it told of it is told today."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility import asking
from tests.drivers.daemon import ROOT
from tests.drivers.warm import warm
from tests.drivers.wire import Json

ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("answers.json").read_text())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A copy of the old data directory."""
    return asking.unpacked(tmp_path)


def command(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("INGESTER_")}
    done = warm().run(list(arguments), kept, ROOT)
    return subprocess.CompletedProcess(
        list(arguments), done.returncode, done.stdout.decode(), done.stderr.decode()
    )


NAMES = ("actions", "status")
"""The answers that are lists of names, to which later versions add."""


def check(found: Json, expected: Json) -> None:
    """Compare answer by answer: a difference is told without all the others."""
    assert expected.keys() - found.keys() == set()
    for asked, answer in expected.items():
        if isinstance(answer, dict):
            check(found[asked], answer)
        elif asked in NAMES:
            assert set(answer) - set(found[asked]) == set(), asked
        else:
            assert as_then(found[asked], answer) == answer, asked


def as_then(found: Any, expected: Any) -> Any:
    """What was found without the names that have come since: clients pass over them."""
    if isinstance(found, dict) and isinstance(expected, dict):
        kept = found.keys() & expected.keys()
        then = {name: as_then(found[name], expected[name]) for name in found if name in kept}
        # What was replayed is being persisted meanwhile.
        if "durable_sequence" in kept and expected["durable_sequence"] is None:
            assert (found["durable_sequence"] or 0) <= (found["memory_sequence"] or 0)
            then["durable_sequence"] = None
        return then
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return [as_then(*pair) for pair in zip(found, expected, strict=True)]
    return found


def test_the_settings_are_what_they_were() -> None:
    check(asking.of_the_settings(command), ANSWERS["settings"])


def test_the_tools_tell_the_same_of_the_log(data: Path) -> None:
    check(asking.of_the_log(command, data), ANSWERS["log"])


def test_the_tools_tell_the_same_of_the_store_and_find_nothing_wrong(data: Path) -> None:
    told = asking.of_the_store(command, data)
    assert told["verify"]["code"] == 0
    check(told, ANSWERS["store"])


def test_a_daemon_answers_the_same_and_the_same_again_after_it_wrote_on(data: Path) -> None:
    check(asking.of_a_life(data), ANSWERS["daemon"])
    # What it has written on top of the old data is as good as the old.
    assert asking.of_the_store(command, data)["verify"]["code"] == 0


def test_an_adoption_brings_the_same_rows_once(data: Path) -> None:
    check(asking.of_an_adoption(command, data), ANSWERS["adopted"])
