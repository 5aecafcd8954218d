"""Rollback by one release: an earlier release opens what this one wrote, and the reverse.

    python -m tests.upgrades.rolling_back REVISION

A daemon of this code writes and is stopped. A daemon of ``REVISION`` (a tag or a commit, in its
own work tree) starts in the same folder, finds every row, writes more and is stopped. Then this
code starts once more. The same is done with a daemon that is killed, with rows only in its log.
The earlier code runs in this environment, so both need the same libraries.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.flight as fl

from tests.drivers.daemon import ROOT, Daemon, Launch
from tests.drivers.wire import Table, persist, query
from tests.upgrades import asking
from tests.upgrades.lives import first_life, left_in_the_log, second_life
from tests.upgrades.written import CHECKED, EVENTS, KEYED, NANOS, PLAIN

TABLES: tuple[Table, ...] = (PLAIN, EVENTS, KEYED, NANOS, CHECKED)


def main() -> None:
    """Go back and forth; exits with an error when a row is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.upgrades.rolling_back")
    parser.add_argument("revision", help="the earlier release: a tag, or a commit")
    revision = parser.parse_args().revision
    with tempfile.TemporaryDirectory() as scratch, work_tree(revision, Path(scratch)) as earlier:
        for ending in ("stopped", "killed"):
            to_and_fro(Path(scratch, ending, "data"), earlier, ending)
            print(f"{ending}: {revision} found all that was written, and its rows are found")


@contextmanager
def work_tree(revision: str, scratch: Path) -> Iterator[Path]:
    """A folder with the files of that revision, removed at the end."""
    folder = scratch / "earlier"
    git = ["git", "-C", str(ROOT), "worktree"]
    add = [*git, "add", "--quiet", "--detach", "--force", str(folder), revision]
    subprocess.run(add, check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def to_and_fro(data: Path, earlier: Path, ending: str) -> None:
    """This release, the earlier one, and this one again, in one data directory."""

    def end(daemon: Daemon) -> None:
        if ending == "stopped":
            code = daemon.terminate()
            assert code == 0, f"exit code {code}\n{daemon.stderr_file.read_text()[-4000:]}"
        else:
            daemon.kill()

    with Daemon.start(data, **asking.SETTINGS) as daemon:
        with fl.connect(daemon.flight) as client:
            first_life(client)
            left_in_the_log(client)
            written = found(client)
        end(daemon)
    with by(earlier), Daemon.start(data, **asking.SETTINGS) as daemon:
        with fl.connect(daemon.flight) as client:
            check(found(client), written, "the earlier release")
            second_life(client)
            for table in TABLES:
                persist(client, table)
            written = found(client)
        end(daemon)
    with Daemon.start(data, **asking.SETTINGS) as daemon, fl.connect(daemon.flight) as client:
        check(found(client), written, "this release")


@contextmanager
def by(checkout: Path) -> Iterator[None]:
    """Start daemons with that code."""
    before = Launch.root
    Launch.root = checkout  # first on the path of `python -m`
    try:
        yield
    finally:
        Launch.root = before


def found(client: fl.FlightClient) -> dict[Table, list[object]]:
    """All rows of each table."""
    return {table: asking.plain_rows(query(client, table)) for table in TABLES}


def check(now: dict[Table, list[object]], before: dict[Table, list[object]], who: str) -> None:
    """Each table has the same rows."""
    for table in TABLES:
        assert now[table] == before[table], (
            f"{who}: {table} has {len(now[table])} rows, it had {len(before[table])}"
        )


if __name__ == "__main__":
    main()
