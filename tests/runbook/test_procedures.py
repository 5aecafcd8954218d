"""Every procedure of the runbook works, command by command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.readme.tour import Shell, alike
from tests.runbook.acting import RUNBOOK, fits, procedures, stage

TITLES = [
    "Procedures",
    "Back up",
    "Restore",
    "Rolling restart",
    "Upgrade, and go back",
    "Scale out and in",
    "Loss of a node, with its disk saved",
    "Loss of a node with its disk",
    "A machine is lost",
]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    started = stage(tmp_path)
    yield started
    started.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_procedure_does_what_the_runbook_says(shell: Shell) -> None:
    """All procedures run on the same daemons, as in the page, because starts take long."""
    done = []
    for title, found in procedures(RUNBOOK.read_text()):
        assert any(step.file is None for step in found), f"{title} has no command"
        for step in found:
            printed = shell.run(step)
            if step.file is not None:
                continue
            where = f"{title}: $ {step.text}\n{printed}"
            assert fits(step.expected, printed), where
            assert step.expected or shell.status == 0, where
        done.append(title)
    assert done == TITLES


@pytest.mark.parametrize(
    ("expected", "printed", "does_fit"),
    [
        ("", "", True),
        ("", "something\n", False),
        ("exit code 0\n", "exit code 0\n", True),
        ("exit code 0\n", "exit code 7\n", False),
        ("exit code 5\n…the log…\n", 'exit code 5\n{"error": "the log is gone"}\n', True),
        ("exit code 5\n…the log…\n", 'exit code 5\n{"error": "other"}\n', False),
        ("…\n", "", True),
        ("…\nlast\n", "one\ntwo\nlast\n", True),
        ("…\nlast\n", "one\nlast\ntwo\n", False),
        ("a.b\n", "acb\n", False),
    ],
)
def test_what_a_page_leaves_out_fits_and_nothing_else(
    expected: str, printed: str, does_fit: bool
) -> None:
    assert fits(expected, printed) is does_fit
    assert fits(alike(printed), printed)


def test_a_command_that_fails_is_seen_by_its_exit_code(shell: Shell) -> None:
    from tests.readme.tour import Step

    assert shell.run(Step("false")) == ""
    assert shell.status == 1
    assert shell.run(Step("echo /srv/lake 127.0.0.1:8182 > x; cat x")) == (
        "/srv/lake 127.0.0.1:8182\n"
    )
