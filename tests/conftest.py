"""Shared test setup: a clean environment, Spark's Python, and hypothesis profiles.

Settings in the developer's shell do not affect the tests. Spark's workers run this Python.
Properties have no deadline, because a slow machine is not a failure.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.drivers.daemon import Launch, end_hanging_daemons

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = int(os.environ.get("INGESTER_TEST_EXAMPLES", "50"))
"""The default number of examples for each property; `make fuzz` runs many more."""
hypothesis.settings.register_profile("here", deadline=None, print_blob=True, max_examples=EXAMPLES)
# In CI the examples are the same on every run, so that a failure comes from the change.
hypothesis.settings.register_profile(
    "ci", deadline=None, print_blob=True, derandomize=True, max_examples=EXAMPLES
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")

# Fixtures of the shared daemon, which tests in many folders use.
pytest_plugins = ["tests.drivers.shared_daemon"]

# This runs at import, so that subprocesses and module-level code see the clean environment too.
for _name in [name for name in os.environ if name.startswith("INGESTER_")]:
    if not _name.startswith("INGESTER_TEST_"):
        del os.environ[_name]

# Spark's workers run this Python, with a faster start. `spark/test_cluster` and the tests in
# `spark/test_compaction` that name no Python start workers as Spark does by default.
os.environ["TESTS_PYTHON"] = sys.executable
os.environ["PYSPARK_PYTHON"] = str(Path(__file__).parent / "drivers" / "spark_python")

# The JVMs of these tests are too short-lived to profit from the second compiler. That compiler and
# parallel garbage collection take a third of the processor time of Spark's tests. Another half of
# a start is the loading of classes, which `make` has kept in a file; a JVM or a PySpark that it was
# not made with ignores it.
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_CLASSES = Path(__file__).parents[1] / ".venv" / "spark.jsa"
os.environ.setdefault("SPARK_LAUNCHER_OPTS", _JVM)
if _CLASSES.exists() and " " not in str(_CLASSES):
    _JVM += f" -XX:SharedArchiveFile={_CLASSES} -Xlog:cds*=off"
os.environ.setdefault("SPARK_SUBMIT_OPTS", _JVM)

# A script's shell makes background processes ignore Ctrl-C, and all processes of the tests would
# inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HANGS_AFTER_S = 270.0
"""Shortly before the pytest timeout, which can end a hanging test only outside of library calls."""

# Imports take most of a daemon's start: a thousand starts would take half of the test time.
Launch.warm = True

# One Spark session is enough, because it needs much memory and time.
_TOGETHER = ("tests/spark/", "tests/postgres/")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two cores, and a time zone other than UTC to expose zone errors."""
    from ingester.spark.session import local_session

    session = local_session("ingester tests", cores=2, shuffle_partitions=2)
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield session
    session.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Before the timeout, end hanging daemons: they dump their stacks, and the test fails."""
    watch = threading.Timer(HANGS_AFTER_S, end_hanging_daemons)
    watch.daemon = True
    watch.start()
    try:
        return (yield)
    finally:
        watch.cancel()


def _group(nodeid: str) -> str:
    """Return the group of a test, which runs in one process: its file, or all Spark tests."""
    file = nodeid.split("::")[0]
    return _TOGETHER[0] if file.startswith(_TOGETHER) else file


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Schedules tests by group. (xdist's own way renames tests, which pytest 9.2 ignores.)"""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Keep the tests of a group in one process."""
    return _ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the longest groups first, so that none runs alone at the end.

    The order is: Spark tests, files with a slow test, large files. ``--no-loadscope-reorder``
    keeps this order.
    """
    if hasattr(config, "workerinput"):
        slow = {_group(item.nodeid) for item in items if item.get_closest_marker("slow")}
        sizes = Counter(_group(item.nodeid) for item in items)
        first = {one: (one != _TOGETHER[0], one not in slow, -size) for one, size in sizes.items()}
        items.sort(key=lambda item: first[_group(item.nodeid)])
