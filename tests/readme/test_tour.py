"""The commands of the docs run in order against a real daemon and Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .rewrite import PAGES
from .tour import Shell, Step, alike, steps

TOURS = [page for page in PAGES if page.name in ("README.md", "tour.md")]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    started = Shell(tmp_path)
    yield started
    started.close()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_prints_what_the_page_says(shell: Shell, page: Path) -> None:
    tour = steps(page.read_text())
    assert len(tour) >= 10
    for step in tour:
        printed = shell.run(step)
        assert alike(printed) == alike(step.expected), f"$ {step.text}"


@pytest.mark.parametrize("page", TOURS, ids=lambda page: page.name)
def test_a_page_starts_a_daemon_kills_it_and_starts_it_again(page: Path) -> None:
    commands = [step.text for step in steps(page.read_text()) if step.file is None]
    serves = [at for at, command in enumerate(commands) if command.startswith("ingester serve")]
    kills = [at for at, command in enumerate(commands) if command.startswith("kill -9")]
    assert len(serves) == 2
    assert len(kills) == 1
    assert serves[0] < kills[0] < serves[1]


PAGE = """Text.

`hello.txt`:

```text
hello
```

```console
$ cat hello.txt
hello
$ echo 'a  b'; echo 127.0.0.1:8082
a b
127.0.0.1:8082
$ sh -c 'echo \\"ready\\"' &
"ready"
$ pwd

$ cat missing
```

```python
not a step
```
"""


def test_files_and_commands_are_found_in_their_order() -> None:
    assert steps(PAGE)[:2] == [
        Step("hello\n", file="hello.txt"),
        Step("cat hello.txt", expected="hello\n"),
    ]
    assert len(steps(PAGE)) == 6


def test_a_shell_runs_steps_in_one_folder_and_shows_failures(shell: Shell) -> None:
    printed = [shell.run(step) for step in steps(PAGE)]
    expected = [step.expected for step in steps(PAGE)]
    assert [alike(text) for text in printed[:4]] == [alike(text) for text in expected[:4]]
    assert printed[4] == "/home/me/tour\n"
    assert "No such file" in printed[5]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5 rows (1.13 s, 4 rows/s)", "5 rows (0.2 s, 25 rows/s)"),
        ('{"incarnation": "c8afb98cb3100dc3", "pid": 7}', '{"incarnation": "00", "pid": 81}'),
        ("size\n1.7 KiB   x", "size\n940 B x"),
    ],
)
def test_what_differs_from_run_to_run_is_made_alike(one: str, other: str) -> None:
    assert alike(one) == alike(other)


@pytest.mark.parametrize(
    ("one", "other"), [("5 rows", "6 rows"), ("version 3", "version 4"), ("h1", "h2"), ("a", "")]
)
def test_what_matters_is_kept_apart(one: str, other: str) -> None:
    assert alike(one) != alike(other)
