"""``pushes list | show``: where pushes stand, by the store that keeps them; nothing is written."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ingester.pushes.leading import leader_of
from ingester.pushes.push_folders import PushFolder, push_folders
from ingester.pushes.push_store import PushDamaged, PushNotFound
from ingester.pushes.record import PushRecord, new_events

from .printing import print_json, print_line, print_table, table_of
from .push_facts import (
    LIST_HEADINGS,
    Facts,
    end_text,
    event_line,
    event_rows,
    list_row,
    push_facts,
    request_rows,
)
from .push_place import PushPlace, push_place, told
from .push_rows import HEADINGS, rows_of_push

LOOK_EVERY_S = 1.0


def print_pushes(config: Path, as_json: bool) -> None:
    """Print all pushes, the newest first; one that cannot be read is told as that."""
    place = push_place(config)
    found, unreadable = [], []
    with told():
        place.check_there()
        for folder in push_folders(place.store):
            try:
                found.append(_listed(place, folder))
            except PushNotFound:
                continue  # it is being deleted
            except PushDamaged as exc:
                unreadable.append({"push_id": folder.push_id, "reason": str(exc)})
    found.sort(key=lambda facts: str(facts["began_at"]), reverse=True)
    if as_json:
        print_json({"pushes": found, "unreadable": unreadable})
        return
    print_table(LIST_HEADINGS, map(list_row, found))
    if unreadable:
        rows = [(each["push_id"], each["reason"]) for each in unreadable]
        print_table(["not read", "because"], rows, "\npushes that cannot be read")


def _listed(place: PushPlace, folder: PushFolder) -> Facts:
    """The facts of a push of which the listing has told already what there is to be read."""
    saved = place.pushes.newest(folder.push_id)
    requests = place.pushes.requests(folder.push_id) if folder.requests else []
    lead = leader_of(place.store, folder.push_id) if folder.leader_at is not None else None
    return push_facts(saved, requests, lead, place.kept_in, 0)


def print_push(config: Path, push_id: str, events: int, watch: bool, as_json: bool) -> None:
    """Print one push; with ``watch`` whenever it changes, until it is over."""
    place = push_place(config)
    with told():
        place.check_there()
        facts, record = _facts(place, push_id, events)
        if not watch:
            _print_facts(facts, as_json)
        elif as_json:
            print_json(facts, indent=-1)
            _follow(place, record, events, lambda facts, record: print_json(facts, indent=-1))
        elif sys.stdout.isatty():
            _watch_on_terminal(place, record, events)
        else:
            _print_tables(facts)
            _follow(place, record, events, _Lines(record))


def facts_of(place: PushPlace, push_id: str, events: int = 20) -> Facts:
    """Return the facts of a push as they are now.

    Raises:
        PushNotFound, PushDamaged, StoreError: there are none.
    """
    return _facts(place, push_id, events)[0]


def _facts(place: PushPlace, push_id: str, events: int) -> tuple[Facts, PushRecord]:
    pushes = place.pushes
    saved = pushes.newest(push_id)
    lead = leader_of(place.store, push_id)
    return push_facts(saved, pushes.requests(push_id), lead, place.kept_in, events), saved.record


Seen = Callable[[Facts, PushRecord], None]


def _follow(place: PushPlace, record: PushRecord, events: int, seen: Seen) -> None:
    """Look at the push every second, and tell of it, until it is over."""
    while not record.over:
        time.sleep(LOOK_EVERY_S)
        facts, now = _facts(place, record.push_id, events)
        if now != record:
            seen(facts, now)
        record = now


def _print_facts(facts: Facts, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        _print_tables(facts)


class _Lines:
    """Prints what is new, and at last what has come of the push."""

    def __init__(self, record: PushRecord) -> None:
        self._last = record

    def __call__(self, facts: Facts, record: PushRecord) -> None:
        for event in new_events(self._last, record):
            print_line(event_line(event.at, event.region, event.what))
        self._last = record
        if record.over:
            print_line(end_text(record))


def _watch_on_terminal(place: PushPlace, record: PushRecord, events: int) -> None:
    from rich.console import Group
    from rich.live import Live

    def screen() -> Group:
        facts, now = _facts(place, record.push_id, events)
        watched.append(now)
        return Group(*(table_of(*each) for each in _tables(facts)))

    watched: list[PushRecord] = []
    with Live(screen(), auto_refresh=False) as live:
        while not watched[-1].over:
            time.sleep(LOOK_EVERY_S)
            live.update(screen(), refresh=True)


def _print_tables(facts: Facts) -> None:
    for headings, rows, title in _tables(facts):
        print_table(headings, rows, title)


Shown = tuple[Sequence[str], Sequence[Sequence[object]], str]


def _tables(facts: Facts) -> list[Shown]:
    """The headings, rows and title of each table."""
    tables: list[Shown] = [(HEADINGS, rows_of_push(facts), "")]
    requests = request_rows(facts)
    if requests:
        headings = ("request", "for", "reason", "at", "taken in")
        tables.append((headings, requests, "\nrequests"))
    if facts["events"]:
        tables.append((("at", "region", "what"), event_rows(facts), "\nevents"))
    return tables
