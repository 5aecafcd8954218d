"""What all tests share: no setting of the developer's shell reaches them, Spark's workers run this
Python, and properties are tried without a deadline, because a busy machine is not a failure."""

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
"""Of each property, unless it says otherwise; `make fuzz` tries many more."""
hypothesis.settings.register_profile("here", deadline=None, print_blob=True, max_examples=EXAMPLES)
# The same examples on every run: a change is judged by what it does, not by the draw.
hypothesis.settings.register_profile(
    "ci", deadline=None, print_blob=True, derandomize=True, max_examples=EXAMPLES
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")

# The daemon that tests of many rooms share, and its fixtures.
pytest_plugins = ["tests.drivers.shared_daemon"]

# At import, so that subprocesses and module-level code see the clean environment too.
for _name in [name for name in os.environ if name.startswith("INGESTER_")]:
    if not _name.startswith("INGESTER_TEST_"):
        del os.environ[_name]

# Of Spark's workers: this Python, quicker to start. On a cluster (`spark/test_cluster`), and
# where nobody says which Python to take (`spark/test_compaction`), they are as Spark starts them.
os.environ["TESTS_PYTHON"] = sys.executable
os.environ["PYSPARK_PYTHON"] = str(Path(__file__).parent / "drivers" / "spark_python")

# A JVM of these tests is gone before what the second compiler makes pays: that one, and several
# threads that collect garbage, take a third of the processor time of Spark's tests.
for _name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# A script's shell has what it starts in the background ignore Ctrl-C, and so all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HANGS_AFTER_S = 270.0
"""Shortly before pytest ends a test that hangs, which it can where no library is waited for."""

# Most of a start is imports: a thousand of them would be half of all tests.
Launch.warm = True

# One Spark session is enough, and it is a heavy one.
_TOGETHER = ("tests/spark/", "tests/postgres/")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, and a time zone that is not UTC, so that whoever forgets zones is found out."""
    from ingester.spark.session import local_session

    session = local_session("ingester tests", cores=2, shuffle_partitions=2)
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield session
    session.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Whoever waits for a daemon for ever gets an error, and the daemon says where it stands."""
    watch = threading.Timer(HANGS_AFTER_S, end_hanging_daemons)
    watch.daemon = True
    watch.start()
    try:
        return (yield)
    finally:
        watch.cancel()


def _group(nodeid: str) -> str:
    """What a test shares dear things with, and so a process: its file; all of Spark's tests."""
    file = nodeid.split("::")[0]
    return _TOGETHER[0] if file.startswith(_TOGETHER) else file


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out groups. (xdist's own way changes the names of tests, which pytest 9.2 ignores.)"""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """With several processes, a group's tests stay in one."""
    return _ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes, the longest groups begin, so that none is alone with one at the end.

    Those are Spark's tests, files with a slow test, and large files, in this order, which
    ``--no-loadscope-reorder`` keeps.
    """
    if hasattr(config, "workerinput"):
        slow = {_group(item.nodeid) for item in items if item.get_closest_marker("slow")}
        sizes = Counter(_group(item.nodeid) for item in items)
        first = {one: (one != _TOGETHER[0], one not in slow, -size) for one, size in sizes.items()}
        items.sort(key=lambda item: first[_group(item.nodeid)])
