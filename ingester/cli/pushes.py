"""``pushes list | show | resume | release | abort | rollback``.

    list, show      print stored pushes; write nothing
    resume          lead a push here
    release         ─▶ a request is written
    abort, rollback ─▶ a request is written ─▶ the push has a leader ─▶ wait for the outcome
                                             └▶ it has none          ─▶ lead it here, to its end

Impossible requests are refused before they are written. Without loadable hooks a request is still
written, as the push may be led elsewhere. A command reports an outcome only once it is recorded.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from ingester.config.units import parse_duration
from ingester.pushes.config import HookConfigError, PushConfigError
from ingester.pushes.configured import ConfiguredPushes, Facts
from ingester.pushes.driver import utc_now
from ingester.pushes.hook_runner import HookFailure, HookRunner
from ingester.pushes.leading import Leadership, lead, led_by, needs_leading, see_through
from ingester.pushes.record import PushRecord, RequestKind, new_events
from ingester.pushes.rollout import PushRequestRefused, requested
from ingester.pushes.states import Status
from ingester.pushes.store import Deposed, PushDamaged, PushNotFound
from ingester.pushes.tasks import RegionUnreachable
from persist.store import StoreError, StoreUnavailable

from .exits import FAILED, REFUSED, USAGE, CommandFailed
from .printing import print_json, print_line, print_table, say, table_of
from .push_rows import LIST_HEADINGS, event_line, list_row, tables_of_push

LOOK_EVERY_S = 1.0


@contextmanager
def told() -> Iterator[None]:
    """Translate errors of configurations, pushes and stores into :class:`CommandFailed`."""
    try:
        yield
    except (PushConfigError, HookConfigError) as exc:
        raise CommandFailed(str(exc), USAGE) from exc
    except PushNotFound as exc:
        raise CommandFailed(f"{exc}; `ingester pushes list` shows all pushes") from exc
    except PushDamaged as exc:
        raise CommandFailed(str(exc), FAILED) from exc
    except (StoreUnavailable, RegionUnreachable) as exc:
        raise CommandFailed(f"{exc}; try again", REFUSED) from exc
    except (StoreError, ValueError) as exc:
        raise CommandFailed(str(exc), FAILED) from exc


def print_pushes(config: Path, as_json: bool) -> None:
    """Print all pushes, newest first, then the unreadable ones."""
    with told():
        place = ConfiguredPushes.read(config)
        place.check_reachable()
        found, unreadable = place.all_facts()
    if as_json:
        damaged = [{"push_id": push_id, "reason": reason} for push_id, reason in unreadable]
        print_json({"pushes": found, "unreadable": damaged})
        return
    print_table(LIST_HEADINGS, map(list_row, found))
    if unreadable:
        print_table(["push", "error"], unreadable, "\nunreadable pushes")


def print_push(config: Path, push_id: str, events: int, watch: bool, as_json: bool) -> None:
    """Print one push; with ``watch``, print each change until the push is over."""
    with told():
        place = ConfiguredPushes.read(config)
        place.check_reachable()
        facts, record = place.facts(push_id, events)
        if watch and sys.stdout.isatty() and not as_json:
            _watch_on_terminal(place, record, events)
            return
        if as_json:
            print_json(facts, indent=-1 if watch else 2)
        else:
            _print_tables(facts)
        if watch:
            seen = _print_json_line if as_json else _EventLines(record)
            _follow(place, record, events, seen)


Seen = Callable[[Facts, PushRecord], None]


def _follow(place: ConfiguredPushes, record: PushRecord, events: int, seen: Seen) -> None:
    """Call ``seen`` with each change of the push, until it is over."""
    while not record.over:
        time.sleep(LOOK_EVERY_S)
        facts, now = place.facts(record.push_id, events)
        if now != record:
            seen(facts, now)
        record = now


def _print_json_line(facts: Facts, record: PushRecord) -> None:
    print_json(facts, indent=-1)


class _EventLines:
    """Prints the new events, and finally the outcome of the push."""

    def __init__(self, record: PushRecord) -> None:
        self._last = record

    def __call__(self, facts: Facts, record: PushRecord) -> None:
        for event in new_events(self._last, record):
            print_line(event_line(event.at.isoformat(), event.region, event.what))
        self._last = record
        if record.over:
            print_line(outcome(record))


def _watch_on_terminal(place: ConfiguredPushes, record: PushRecord, events: int) -> None:
    from rich.console import Group
    from rich.live import Live

    def screen() -> Group:
        facts, now = place.facts(record.push_id, events)
        watched.append(now)
        return Group(*(table_of(*each) for each in tables_of_push(facts)))

    watched: list[PushRecord] = []
    with Live(screen(), auto_refresh=False) as live:
        while not watched[-1].over:
            time.sleep(LOOK_EVERY_S)
            live.update(screen(), refresh=True)


def _print_tables(facts: Facts) -> None:
    for headings, rows, title in tables_of_push(facts):
        print_table(headings, rows, title)


def outcome(record: PushRecord) -> str:
    """Return the state of a push, and its outcome if it is over, as one line."""
    regions = ", ".join(f"{each.name} {each.status.value}" for each in record.regions)
    why = f": {record.ending.kind}: {record.ending.reason}" if record.ending is not None else ""
    ended = "ended" if record.over else "is"
    return f"push {record.push_id} {ended} {record.status.value} ({regions}){why}"


# ----------------------------------------------------------------------- resume, abort and rollback


_LEAVE_WITHIN_S = 1.5
"""The time to leave the push in order after a signal."""
_WITHOUT_DATA = (Status.STARTED, Status.WRITING)
T = TypeVar("T")


class EndRequest(NamedTuple):
    """The arguments of ``abort`` and ``rollback``."""

    push_id: str
    kind: Literal["abort", "rollback"]
    reason: str
    no_wait: bool
    timeout: str


def resume_push(config: Path, push_id: str, take_over: bool, as_json: bool) -> None:
    """Lead a push until it is over.

    Raises:
        CommandFailed: it has another leader, or is not live in every region at its end.
    """
    with told():
        place = ConfiguredPushes.read(config)
        place.check_reachable()
        newest = place.pushes.newest(push_id)
        record = newest.record
        if needs_leading(newest, len(place.pushes.requests(push_id))):
            leader = led_by(place.store, push_id)
            if leader is not None and not take_over:
                raise CommandFailed(
                    f"push {push_id} is led by {leader.controller}, last heartbeat"
                    f" {leader.age.total_seconds():.0f} s ago: `ingester pushes show {push_id}"
                    " --watch` shows it, --take-over takes it over",
                    REFUSED,
                )
            how, hooks = place.leadership(_say_failure)
            if all(each.status in _WITHOUT_DATA for each in record.regions):
                say(
                    "no region has the data yet: the job that writes it has to run, or to be"
                    f" started again with the push id {push_id}"
                )
            record = _in_background(lambda stop: _led(how, push_id, stop, take_over), None)
            _say_counts(hooks)
    _conclude(place, record, as_json, record.status is Status.SERVING)


def release_push(config: Path, push_id: str, reason: str) -> None:
    """Request that a deferred push goes live; do not wait for it.

    Raises:
        CommandFailed: it is not deferred, or has ended.
    """
    with told():
        place = ConfiguredPushes.read(config)
        place.check_reachable()
        _request(place, push_id, "release", reason)


def _request(
    place: ConfiguredPushes, push_id: str, kind: RequestKind, reason: str
) -> tuple[int, bool]:
    """Store a request that is possible; return its number, and whether the push has a leader."""
    try:
        requested(place.pushes.newest(push_id).record, kind, reason, utc_now())
    except PushRequestRefused as exc:
        raise CommandFailed(str(exc)) from exc
    leader = led_by(place.store, push_id)
    number = place.pushes.request(push_id, kind, reason, utc_now())
    who = "it has no leader" if leader is None else f"its leader is {leader.controller}"
    say(f"push {push_id}: {kind} requested, as request {number}; {who}")
    if leader is None and kind == "release":
        say(_NO_LEADER.format(push_id=push_id))
    return number, leader is not None


_NO_LEADER = "a controller processes it, or `ingester pushes resume {push_id}`"


def end_push(config: Path, request: EndRequest, as_json: bool) -> None:
    """Request the end of a push, and wait for it.

    Raises:
        CommandFailed: it is no longer possible, has not happened in time, or ended otherwise.
    """
    try:
        timeout_s = parse_duration(request.timeout)
    except ValueError as exc:
        raise CommandFailed(f"--timeout: {exc}", USAGE) from exc
    push_id, kind, reason = request.push_id, request.kind, request.reason
    with told():
        place = ConfiguredPushes.read(config)
        place.check_reachable()
        number, is_led = _request(place, push_id, kind, reason)
        if request.no_wait:
            if not is_led:
                say(_NO_LEADER.format(push_id=push_id))
            return
        # Only a leader needs hooks. Hooks that are invalid here must not prevent the request.
        how, hooks = place.leadership(_say_failure)
        if not is_led:
            say("the push is led here, to its end")
        record = _in_background(lambda stop: _led(how, push_id, stop, False), timeout_s)
        _say_counts(hooks)
    refusal = f"request {number} refused: "
    for event in record.history:
        if event.what.startswith(refusal):
            raise CommandFailed(event.what)
    if not record.over:
        raise CommandFailed(
            f"after {request.timeout}: {outcome(record)}; request {number} is"
            f" {'being processed' if record.requests >= number else 'still pending'}"
        )
    _conclude(place, record, as_json, record.status in (Status.ROLLED_BACK, Status.ABORTED))


def _led(how: Leadership, push_id: str, stop: threading.Event, take_over: bool) -> PushRecord:
    progress = _EventPrinter()
    if take_over:
        try:
            return lead(how, push_id, stop, progress)
        except Deposed:
            say(f"push {push_id} was taken over by another leader")
    return see_through(how, push_id, stop, progress)


def _in_background(work: Callable[[threading.Event], T], timeout_s: float | None) -> T:
    """Return the result of ``work``, which is told to stop after a time-out or a signal."""
    stop, results, errors = threading.Event(), [], []
    # Not `join`: interrupted by a signal, it takes the thread for ended (bpo-45274).
    ended = threading.Event()

    def run() -> None:
        try:
            results.append(work(stop))
        except BaseException as exc:
            errors.append(exc)
        finally:
            ended.set()

    threading.Thread(target=run, daemon=True, name="push").start()
    try:
        ended.wait(timeout_s)
        stop.set()
        ended.wait()
    except BaseException:
        stop.set()
        ended.wait(_LEAVE_WITHIN_S)
        raise
    if errors:
        raise errors[0]
    return results[0]


class _EventPrinter:
    """Prints each event of a push once, on standard error."""

    def __init__(self) -> None:
        self._last: PushRecord | None = None

    def __call__(self, record: PushRecord) -> None:
        if self._last is None:
            say(outcome(record))
        else:
            for event in new_events(self._last, record):
                say(event_line(event.at.isoformat(), event.region, event.what))
        self._last = record


def _conclude(place: ConfiguredPushes, record: PushRecord, as_json: bool, good: bool) -> None:
    if as_json:
        with told():
            print_json(place.facts(record.push_id)[0])
    elif good:
        print_line(outcome(record))
    if not good:
        raise CommandFailed(outcome(record), FAILED)


def _say_failure(failure: HookFailure) -> None:
    say(failure.text())


def _say_counts(hooks: HookRunner) -> None:
    for each in hooks.statistics():
        say(each.text())
