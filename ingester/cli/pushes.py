"""``pushes list | show``: prints stored pushes; writes nothing."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ingester.pushes.config import HookConfigError, PushConfigError
from ingester.pushes.configured import ConfiguredPushes, Facts
from ingester.pushes.record import PushRecord, new_events
from ingester.pushes.store import PushDamaged, PushNotFound
from ingester.pushes.tasks import RegionUnreachable
from persist.store import StoreError, StoreUnavailable

from .exits import FAILED, REFUSED, USAGE, CommandFailed
from .printing import print_json, print_line, print_table, table_of
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
