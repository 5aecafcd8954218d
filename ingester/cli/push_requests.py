"""``pushes resume | abort | rollback``: lead a push here, or request its end from its leader.

    abort, rollback ─▶ a request is written ─▶ the push has a leader ─▶ wait for the outcome
                                             └▶ it has none          ─▶ lead it here, to its end

Impossible requests are refused before they are written. Without loadable hooks a request is still
written, as the push may be led elsewhere. A command reports an outcome only once it is recorded.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from ingester.config.units import parse_duration
from ingester.pushes.configured import ConfiguredPushes
from ingester.pushes.driver import utc_now
from ingester.pushes.hook_runner import HookFailure, HookRunner
from ingester.pushes.leading import Leadership, lead, led_by, needs_leading, see_through
from ingester.pushes.record import PushRecord, new_events
from ingester.pushes.rollout import PushRequestRefused, requested
from ingester.pushes.states import Status
from ingester.pushes.store import Deposed

from .exits import FAILED, REFUSED, USAGE, CommandFailed
from .printing import print_json, print_line, say
from .push_rows import event_line
from .pushes import outcome, told

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
        try:
            requested(place.pushes.newest(push_id).record, kind, reason, utc_now())
        except PushRequestRefused as exc:
            raise CommandFailed(str(exc)) from exc
        leader = led_by(place.store, push_id)
        number = place.pushes.request(push_id, kind, reason, utc_now())
        who = "it has no leader" if leader is None else f"its leader is {leader.controller}"
        say(f"push {push_id}: {kind} requested, as request {number}; {who}")
        if request.no_wait:
            if leader is None:
                say(f"a controller processes it, or `ingester pushes resume {push_id}`")
            return
        # Only a leader needs hooks. Hooks that are invalid here must not prevent the request.
        how, hooks = place.leadership(_say_failure)
        if leader is None:
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
