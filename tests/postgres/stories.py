"""Stories of tables at one source, run in parallel and in phases: statements and expected results.

    phase 0: tables with rows ─▶ [ all as expected? ] ─▶ phase 1: changes ─▶ [ … ] ─▶ … ─▶ end

In each phase a table must be ``EQUAL`` to its source by :mod:`tests.postgres.comparing`, or set
aside with a fitting reason. After ``patience_s`` only the failing stories are reported.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.flight as fl

from tests.drivers.daemon import Daemon
from tests.drivers.wire import ARROW_AND_FLIGHT
from tests.postgres.cluster import Cluster
from tests.postgres.comparing import compare, source_tables
from tests.postgres.storm.judging import reports

EQUAL, LEFT = "equal", "left"
"""``LEFT``: the table was dropped or is not published, and no report may claim that it follows."""
Expected = Mapping[str, str]
"""By ``schema.name``: ``EQUAL``, ``LEFT`` or a regular expression for the reason."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Statements, each usually one transaction, and the expected result."""

    statements: Sequence[str]
    expected: Expected


@dataclass(frozen=True, slots=True)
class Story:
    """The phases of one kind of fault."""

    name: str
    phases: Sequence[Phase]


@dataclass(slots=True)
class Told:
    """The outcome of all stories: by name, the first unexpected result."""

    wrong: dict[str, str] = field(default_factory=dict)
    took_s: list[float] = field(default_factory=list)


def tell(
    cluster: Cluster,
    daemon: Callable[[], Daemon],
    namespace: str,
    stories: Sequence[Story],
    between: Callable[[int], None] = lambda number: None,
    patience_s: float = 40.0,
) -> Told:
    """Run the phases of all stories in parallel; ``between`` is called before each phase.

    A story with an unexpected result fails, and its later phases are not run.
    """
    told = Told()
    for number in range(max(len(story.phases) for story in stories)):
        between(number)
        began = time.monotonic()
        expected: dict[str, Expected] = {}
        for story in stories:
            if number < len(story.phases) and story.name not in told.wrong:
                cluster.run(*story.phases[number].statements)
            if story.name not in told.wrong:
                expected[story.name] = story.phases[min(number, len(story.phases) - 1)].expected
        while True:
            wrong = _look(cluster, daemon(), namespace, expected)
            if not wrong or time.monotonic() - began > patience_s:
                break
            time.sleep(0.2)
        for name, what in wrong.items():
            told.wrong[name] = f"phase {number}: {what}"
        told.took_s.append(time.monotonic() - began)
    return told


def _look(
    cluster: Cluster, daemon: Daemon, namespace: str, expected: Mapping[str, Expected]
) -> dict[str, str]:
    import psycopg2

    connection = psycopg2.connect(cluster.dsn)
    connection.autocommit = True
    try:
        tables = {f"{each.schema}.{each.name}": each for each in source_tables(connection)}
        said = reports(daemon, namespace)
        found = {}
        with fl.connect(daemon.flight) as client:
            for name, wanted in expected.items():
                for table, what in wanted.items():
                    wrong = _wrong(connection, client, namespace, table, what, tables, said)
                    if wrong:
                        found[name] = f"{table}: {wrong}"
                        break
    finally:
        connection.close()
    return found


def _wrong(
    connection: Any,
    client: fl.FlightClient,
    namespace: str,
    name: str,
    wanted: str,
    tables: Mapping[str, Any],
    said: Mapping[str, Mapping[str, Any]],
) -> str | None:
    report = said.get(name, {"phase": "not reported", "reason": ""})
    phase, reason = report["phase"], report["reason"]
    if wanted == LEFT:
        return None if phase in ("not reported", "left") else f"it is {phase}"
    if wanted != EQUAL:
        if phase != "set_aside":
            return f"it is {phase}, not set aside: {wanted}"
        return None if re.search(wanted, reason) else f"set aside for another reason: {reason}"
    if phase == "set_aside":
        return f"set aside: {reason}"
    try:
        difference = compare(connection, client, namespace, tables[name])
    except ARROW_AND_FLIGHT as exc:
        return f"it is {phase}: {' '.join(str(exc).split())[:200]}"
    if difference is not None:
        return f"it is {phase}: {difference}"
    return None if phase == "following" else f"it is equal, but {phase}"
