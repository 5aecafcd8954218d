"""Faults and the runbook as files: each entry for an operator exists and is tried by a fault."""

from __future__ import annotations

import re

import pytest

from tests.alerts.faults import FAULTS
from tests.alerts.operator import FIRST
from tests.alerts.rules import alerts
from tests.runbook.acting import RUNBOOK, Act, acts, causes, entry, named

PAGE = RUNBOOK.read_text()


@pytest.mark.parametrize("name", FAULTS)
def test_each_alert_has_an_entry_with_causes_and_remedies(name: str) -> None:
    fault = FAULTS[name]
    read = {where for where, _ in fault.follows}
    assert {alert.entry for alert in alerts() if alert.name in fault.alerts} <= read
    for where, cause in fault.follows:
        assert [each for each in acts(PAGE, where) if each.part == "Look at"], where
        assert cause is None or f"*{cause}*" in entry(PAGE, where), (where, cause)
    helps = [where for where, cause in fault.follows if cause in causes(PAGE, where)]
    assert bool(helps) != fault.elsewhere or name == "loop_stalled"


def test_every_command_of_an_entry_is_run_for_some_fault() -> None:
    read = {pair for fault in FAULTS.values() for pair in fault.follows}
    untyped: list[tuple[str, Act]] = []
    for title in re.findall(r"^## (.+)$", PAGE, flags=re.M):
        if title in (FIRST, "Procedures"):
            continue
        causes_read = {cause for where, cause in read if where == named(title)}
        untyped += [
            (title, each)
            for each in acts(PAGE, title)
            if not causes_read or (each.part == "Do" and each.cause not in (None, *causes_read))
        ]
    assert untyped == []


def test_an_entry_is_split_into_commands_by_heading_and_cause() -> None:
    page = (
        "# Page\n\n## an-entry\n\n**Means.** It is.\n\n**Look at.** This:\n\n"
        "```console\n$ look\nseen\n```\n\n**Do.** For all:\n\n```console\n$ all\n```\n\n"
        "*One*: this.\n\n```console\n$ one\n```\n\n*Two*: that.\n\n```console\n$ two\n```\n\n"
        "### More\n\n```console\n$ more\n```\n\n## another\n"
    )
    found = [(each.part, each.cause, each.step.text) for each in acts(page, "an-entry")]
    assert found == [
        ("Look at", None, "look"),
        ("Do", None, "all"),
        ("Do", "One", "one"),
        ("Do", "Two", "two"),
    ]
    assert causes(page, "an-entry") == [None, "One", "Two"]
    with pytest.raises(KeyError):
        entry(page, "missing")
