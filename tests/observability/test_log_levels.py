"""Log levels changed at runtime."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
import trio
from trio.testing import MockClock

import ingester.flush.flusher  # noqa: F401 (loggers have the names of modules)
from ingester.observability.log_levels import LONGEST_S, LogLevels, LogLevelStatus
from ingester.observability.logs import configure_logs


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    logging.captureWarnings(False)
    root.handlers, root.level = handlers, level
    logging.getLogger("hypercorn").setLevel(logging.NOTSET)
    structlog.reset_defaults()


def events(out: io.StringIO) -> list[str]:
    """Events logged since the last call, except for changes of the log level."""
    said = [json.loads(line)["event"] for line in out.getvalue().splitlines()]
    out.seek(0)
    out.truncate()
    return [event for event in said if not event.startswith("log level")]


def test_the_longest_name_counts_at_once_and_of_loggers_that_were_made_before() -> None:
    out, levels = io.StringIO(), LogLevels("info")
    configure_logs(levels, "json", stream=out)
    flush, wal = structlog.get_logger("ingester.flush.flusher"), structlog.get_logger("wal")

    def talk() -> list[str]:
        for name, log in (("flush", flush), ("wal", wal)):
            log.debug(f"{name} debug")
            log.info(f"{name} info")
        return events(out)

    assert talk() == ["flush info", "wal info"]
    levels.set("debug")
    assert talk() == ["flush debug", "flush info", "wal debug", "wal info"]
    levels.set("warning", "ingester.flush")
    assert talk() == ["wal debug", "wal info"]
    levels.set("debug", "ingester.flush.flusher")
    assert talk() == ["flush debug", "flush info", "wal debug", "wal info"]
    levels.set(None, "ingester.flush")  # and the loggers below it
    assert [each.logger for each in levels.status().set] == [""]
    levels.set(None)
    assert (talk(), levels.status()) == (["flush info", "wal info"], LogLevelStatus(level="info"))


def test_a_level_for_a_time_falls_back_by_itself_and_a_later_one_takes_its_place() -> None:
    out = io.StringIO()
    seen = []

    async def live(clock: MockClock) -> None:
        levels = LogLevels("info", trio.current_time)
        configure_logs(levels, "json", stream=out)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(levels.run)
            levels.set("debug", for_s=60.0)
            levels.set("error", "wal", for_s=10.0)
            for wait_s in (9.0, 2.0, 48.0, 2.0):
                await trio.sleep(wait_s)
                seen.append((levels.level_of("ingester"), levels.level_of("wal")))
            nursery.cancel_scope.cancel()

    clock = MockClock(autojump_threshold=0)
    trio.run(live, clock, clock=clock)
    assert seen == [("debug", "error"), ("debug", "debug"), ("debug", "debug"), ("info", "info")]
    fell = [json.loads(line) for line in out.getvalue().splitlines() if "fell back" in line]
    assert [line["loggers"] for line in fell] == [["wal"], ["all"]]


def test_a_library_says_more_when_it_is_named_and_no_more_when_that_is_taken_back() -> None:
    out, levels = io.StringIO(), LogLevels("info")
    configure_logs(levels, "json", stream=out)
    library = logging.getLogger("hypercorn")
    library.debug("quiet")
    levels.set("debug", "hypercorn")
    library.debug("loud")
    line = json.loads(out.getvalue().splitlines()[-1])
    assert (line["level"], line["event"], line["logger"]) == ("debug", "loud", "hypercorn")
    assert "runbook" not in line
    levels.set(None, "hypercorn")
    library.debug("quiet again")
    assert events(out) == ["loud"]


@pytest.mark.parametrize(
    ("name", "for_s", "said"),
    [
        ("ingester.flushh", None, "did you mean 'ingester.flush"),
        ("\x1b[2J", None, "there is no logger"),
        ("", 0.0, "not between 1 s and 30 days"),
        ("", LONGEST_S + 1, "not between"),
        ("", float("nan"), "not between"),
    ],
)
def test_what_cannot_be_set_changes_nothing(name: str, for_s: float | None, said: str) -> None:
    levels = LogLevels("info")
    with pytest.raises(ValueError, match=r"^[^\x1b]*$") as refused:
        levels.set("debug", name, for_s)
    assert said in str(refused.value)
    assert levels.status() == LogLevelStatus(level="info")
