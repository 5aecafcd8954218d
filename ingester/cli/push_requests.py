"""``pushes resume | abort | rollback``: a push is led here, or whoever leads it is asked to end it.

    abort, rollback ─▶ a request is written ─▶ somebody leads ─▶ wait for what comes of it
                                             └▶ nobody does   ─▶ lead the push here, to its end

Law of this file: what cannot be is refused before a request is written. Hooks that cannot be loaded
here keep nobody from that, as the push may be led elsewhere. A command says what has come of the
push, or that it does not know yet, and never that it was done before it is.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from ingester.config.units import parse_duration
from ingester.pushes.driver import utc_now
from ingester.pushes.leading import Leadership, lead, led_by, needs_leading, see_through
from ingester.pushes.push_store import Deposed
from ingester.pushes.record import PushRecord, new_events
from ingester.pushes.rollout import RequestRefused, requested
from ingester.pushes.runner import HookFailure, HookRunner
from ingester.pushes.status import Status

from .exits import FAILED, REFUSED, USAGE, CommandFailed
from .printing import print_json, print_line, say
from .push_facts import end_text, event_line
from .push_place import PushPlace, leadership, push_place, told
from .pushes import facts_of

_LEAVE_WITHIN_S = 1.5
"""After a signal, the time to leave the push in order."""
_WITHOUT_DATA = (Status.STARTED, Status.WRITING)
T = TypeVar("T")


class Asked(NamedTuple):
    """What is asked for a push."""

    push_id: str
    kind: Literal["abort", "rollback"]
    reason: str
    no_wait: bool
    timeout: str


def resume_push(config: Path, push_id: str, take_over: bool, as_json: bool) -> None:
    """Lead a push until it is over.

    Raises:
        CommandFailed: somebody else leads it, or it has ended otherwise than live everywhere.
    """
    place = push_place(config)
    with told():
        place.check_there()
        newest = place.pushes.newest(push_id)
        if needs_leading(newest, len(place.pushes.requests(push_id))):
            leads = led_by(place.store, push_id)
            if leads is not None and not take_over:
                raise CommandFailed(
                    f"push {push_id} is led by {leads.controller}, heard of"
                    f" {leads.age.total_seconds():.0f} s ago: `ingester pushes show {push_id}"
                    " --watch` shows it, --take-over takes it from there",
                    REFUSED,
                )
            how, hooks = leadership(place, _say_failure)
            if all(each.status in _WITHOUT_DATA for each in newest.record.regions):
                say(
                    "no region has its data: the job that brings it has to be running, or is"
                    f" submitted again under the push id {push_id}"
                )
            record = _in_background(lambda stop: _led(how, push_id, stop, take_over), None)
            _say_counts(hooks)
        else:
            record = newest.record
    _conclude(place, record, as_json, record.status is Status.SERVING)


def end_push(config: Path, asked: Asked, as_json: bool) -> None:
    """Ask for a push to be given up or undone, and wait for that.

    Raises:
        CommandFailed: it cannot be any more, has not come about in time, or came out otherwise.
    """
    try:
        timeout_s = parse_duration(asked.timeout)
    except ValueError as exc:
        raise CommandFailed(f"--timeout: {exc}", USAGE) from exc
    place = push_place(config)
    pushes, push_id = place.pushes, asked.push_id
    with told():
        place.check_there()
        try:
            requested(pushes.newest(push_id).record, asked.kind, asked.reason, utc_now())
        except RequestRefused as exc:
            raise CommandFailed(str(exc)) from exc
        leads = led_by(place.store, push_id)
        number = pushes.request(push_id, asked.kind, asked.reason, utc_now())
        who = "nobody leads it" if leads is None else f"{leads.controller} leads it"
        say(f"push {push_id} is asked for: {asked.kind}, as request {number}; {who}")
        if asked.no_wait:
            if leads is None:
                say(f"a controller will, or `ingester pushes resume {push_id}`")
            return
        # Whoever leads it needs the hooks. What is wrong with them here must not keep a push going.
        how, hooks = leadership(place, _say_failure)
        if leads is None:
            say("so it is led here, to its end")
        record = _in_background(lambda stop: _led(how, push_id, stop, False), timeout_s)
        _say_counts(hooks)
    refusal = f"request {number} refused: "
    for event in record.history:
        if event.what.startswith(refusal):
            raise CommandFailed(event.what)
    if not record.over:
        raise CommandFailed(
            f"after {asked.timeout}: {end_text(record)}; request {number} is"
            f" {'taken in' if record.requests >= number else 'not heard yet'}, and stays"
        )
    good = (Status.ROLLED_BACK, Status.ABORTED)
    _conclude(place, record, as_json, record.status in good)


def _led(how: Leadership, push_id: str, stop: threading.Event, take_over: bool) -> PushRecord:
    progress = _Progress()
    if take_over:
        try:
            return lead(how, push_id, stop, progress)
        except Deposed:
            say(f"push {push_id} was taken over by another leader")
    return see_through(how, push_id, stop, progress)


def _in_background(work: Callable[[threading.Event], T], timeout_s: float | None) -> T:
    """Return what the work returns, which is told to stop after a time-out or a signal."""
    stop, results, errors = threading.Event(), [], []
    # Not `join`: one that a signal has interrupted takes the thread for ended (bpo-45274).
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


class _Progress:
    """Says each event of a push once, on standard error."""

    def __init__(self) -> None:
        self._last: PushRecord | None = None

    def __call__(self, record: PushRecord) -> None:
        if self._last is None:
            regions = ", ".join(f"{each.name} {each.status.value}" for each in record.regions)
            say(f"push {record.push_id} stands at {record.status.value} ({regions})")
        else:
            for event in new_events(self._last, record):
                say(event_line(event.at, event.region, event.what))
        self._last = record


def _conclude(place: PushPlace, record: PushRecord, as_json: bool, good: bool) -> None:
    if as_json:
        with told():
            print_json(facts_of(place, record.push_id))
    elif good:
        print_line(end_text(record))
    if not good:
        raise CommandFailed(end_text(record), FAILED)


def _say_failure(failure: HookFailure) -> None:
    say(failure.text())


def _say_counts(hooks: HookRunner) -> None:
    for each in hooks.statistics():
        say(each.text())
