"""The log as an operator's collector reads it."""

import io
import json
import logging
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from ingester.observability.logs import RECENT, TRACEBACK_FRAMES, configure_logs


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    logging.captureWarnings(False)
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def fail(depth: int) -> None:
    if depth:
        fail(depth - 1)
    raise ValueError("the innermost reason")


def test_an_event_is_one_json_line_with_its_fields() -> None:
    out = io.StringIO()
    configure_logs("info", "json", stream=out)
    structlog.get_logger().info("partition persisted", partition="day=ä", rows=10)
    (line,) = lines(out)
    assert list(line) == ["at", "level", "event", "partition", "rows"]
    assert line["at"].endswith("Z")
    assert (line["level"], line["event"]) == ("info", "partition persisted")
    assert (line["partition"], line["rows"]) == ("day=ä", 10)


def test_auto_is_json_for_a_collector_and_text_for_a_terminal() -> None:
    collector, terminal = io.StringIO(), Terminal()
    configure_logs(style="auto", stream=collector)
    structlog.get_logger().info("segment rotated", segment=7)
    configure_logs(style="auto", stream=terminal)
    structlog.get_logger().info("segment rotated", segment=7)
    assert lines(collector)[0]["segment"] == 7
    assert not terminal.getvalue().startswith("{")
    assert "segment rotated" in terminal.getvalue()


def test_events_below_the_level_are_not_written() -> None:
    out = io.StringIO()
    configure_logs("warning", "json", stream=out)
    log = structlog.get_logger()
    log.debug("a")
    log.info("b")
    log.warning("c", runbook="store-away")
    assert [line["event"] for line in lines(out)] == ["c"]


def test_a_traceback_is_limited_to_the_innermost_frames_whatever_python_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "tracebacklimit", 0, raising=False)
    out = io.StringIO()
    configure_logs(style="json", stream=out)
    try:
        fail(100)
    except ValueError:
        structlog.get_logger().exception("persist failed", runbook="persist-failing")
    (line,) = lines(out)
    assert line["error"] == "ValueError: the innermost reason"
    assert 1 < line["exception"].count('File "') <= TRACEBACK_FRAMES
    assert line["exception"].endswith("ValueError: the innermost reason")
    assert 'raise ValueError("the innermost reason")' in line["exception"]


def test_the_last_warnings_and_errors_are_kept_newest_first_without_tracebacks() -> None:
    recent = configure_logs(style="json", stream=io.StringIO())
    log = structlog.get_logger()
    for number in range(RECENT + 5):
        log.info("not kept")
        log.warning("store was away", attempt=number, runbook="store-away")
    try:
        fail(1)
    except ValueError:
        log.exception("persist failed", table="t", runbook="persist-failing")
    problems = recent.newest_first()
    assert len(problems) == RECENT
    first, second = problems[:2]
    assert (first.event, first.level, first.runbook) == (
        "persist failed",
        "error",
        "persist-failing",
    )
    assert first.message == "ValueError: the innermost reason, table=t"
    assert (second.event, second.message) == ("store was away", f"attempt={RECENT + 4}")
    assert first.at.endswith("Z")


def test_a_warning_below_the_level_is_not_kept_either() -> None:
    recent = configure_logs("error", "json", stream=io.StringIO())
    structlog.get_logger().warning("store was away", runbook="store-away")
    assert recent.newest_first() == []


def test_libraries_log_through_the_same_lines_from_warning_on() -> None:
    out = io.StringIO()
    recent = configure_logs("info", "json", stream=out)
    library = logging.getLogger("botocore.retry")
    library.info("chatter")
    library.warning("attempt %d failed", 2)
    library.log(35, "between the levels")
    try:
        fail(1)
    except ValueError:
        logging.getLogger("hypercorn.error").exception("Error in ASGI Framework")
    written = lines(out)
    assert [(line["level"], line["event"]) for line in written] == [
        ("warning", "attempt 2 failed"),
        ("warning", "between the levels"),
        ("error", "Error in ASGI Framework"),
    ]
    assert written[0]["logger"] == "botocore.retry"
    assert "the innermost reason" in written[2]["exception"]
    assert {line["runbook"] for line in written} == {"library-warning"}
    assert len(recent.newest_first()) == 3


def test_warnings_of_python_are_log_lines_too() -> None:
    out = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logs(style="json", stream=out)
        warnings.warn("old way of doing it", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(False)
    (line,) = lines(out)
    assert line["logger"] == "py.warnings"
    assert "old way of doing it" in line["event"]


def test_credentials_in_urls_are_masked_everywhere() -> None:
    out = io.StringIO()
    recent = configure_logs(style="json", stream=out)
    url = "s3://key:s3cret@host/bucket"
    try:
        raise OSError(f"cannot reach {url}")
    except OSError as exc:
        structlog.get_logger().exception("store was away", url=url, cause=exc, runbook="store-away")
    assert "s3cret" not in out.getvalue()
    assert "s3cret" not in recent.newest_first()[0].message
    assert lines(out)[0]["url"] == "s3://***@host/bucket"


def test_what_a_terminal_would_obey_is_shown_by_its_number_and_an_event_is_one_line() -> None:
    evil = "a\x1b[2J\n\x9b\u202eb at=fake"
    for style, stream in (
        ("console", Terminal()),
        ("console", io.StringIO()),
        ("json", Terminal()),
    ):
        recent = configure_logs(style=style, stream=stream)  # type: ignore[arg-type]
        structlog.get_logger().warning(evil, partition=evil, rows=(evil,))
        logging.getLogger("a library").warning("%s", evil)
        structlog.get_logger().error("failed", exc_info=ValueError(evil))
        text = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())  # colours added by the renderer
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert len(text.splitlines()) == (3 if style == "json" else 5)
        assert not any("\x1b" in each.message for each in recent.newest_first())
    json_lines = lines(stream)
    assert json_lines[0]["partition"] == evil


def test_a_warning_without_a_runbook_entry_says_so() -> None:
    out = io.StringIO()
    configure_logs(style="json", stream=out)
    structlog.get_logger().warning("something odd happened")
    structlog.get_logger().info("all is well")
    odd, well = lines(out)
    assert odd["runbook"] == "unlisted"
    assert "runbook" not in well


def test_a_closed_standard_error_does_not_stop_the_daemon() -> None:
    out = io.StringIO()
    recent = configure_logs(style="json", stream=out)
    out.close()
    structlog.get_logger().warning("store was away", runbook="store-away")
    assert recent.newest_first()[0].event == "store was away"


def test_lines_of_many_threads_stay_whole() -> None:
    out = io.StringIO()
    configure_logs(style="json", stream=out)
    log = structlog.get_logger()
    threads = [
        threading.Thread(target=lambda: [log.info("done", n=n) for n in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(line["n"] for line in lines(out)) == sorted(list(range(50)) * 4)
