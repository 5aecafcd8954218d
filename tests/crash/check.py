"""``python -m tests.crash.check HISTORY…``: judges whether a history is possible, from it alone.

Rules, by the name that an anomaly carries:

    never sent        a read has a row that no client had sent by its end
    refused           a read has a row whose batch was permanently refused
    twice             a read has a row more than once
    torn              a read has a part of a batch
    read your writes  a client's read lacks a row acknowledged to it before the read was sent
    lost              a read lacks a row acknowledged to another client before it was sent
    not monotonic     a read lacks a row of an earlier read of the same client
    taken back        a read lacks a row of another client's earlier read: that read was dirty
    not read          acknowledged rows without a complete read afterwards
    not a history     contradictory events: times that run back, answers without a request

The checker knows only the events (:mod:`tests.crash.history`). "Earlier" and "before" mean that
one ended before the other began; overlapping events may be visible or not. An interrupted read
counts for the rows it returned, never for missing ones.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.crash.history import Event, Ranges, events_of

NEVER = float("inf")
MAX_TOLD = 20


class Anomaly(NamedTuple):
    """A violated rule and its evidence."""

    rule: str
    text: str


@dataclass(slots=True)
class Verdict:
    """The anomalies of a history, and the number of events that were checked."""

    anomalies: list[Anomaly] = field(default_factory=list)
    sent: int = 0
    """Number of batches."""
    kept: int = 0
    kept_rows: int = 0
    refused: int = 0
    reads: int = 0
    broken_off: int = 0
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, rule: str, text: str) -> None:
        """Add an anomaly."""
        self.anomalies.append(Anomaly(rule, text))


class Batches:
    """All batches of one writer into one table, with the times of their fates."""

    def __init__(self) -> None:
        self.count: dict[int, int] = {}
        self.sent: dict[int, float] = {}
        self.kept: dict[int, float] = {}
        self.refused: dict[int, float] = {}
        self.sender: dict[int, str] = {}

    def settle(self) -> None:
        """Build arrays, by batch in the order of their numbers, once all events are added."""
        order = sorted(self.count)
        self.starts = np.array(order, np.int64)
        self.ends = np.array([start + self.count[start] for start in order], np.int64)
        self.sent_at = np.array([self.sent[start] for start in order])
        self.kept_at = np.array([self.kept.get(start, NEVER) for start in order])
        self.is_refused = np.array([start in self.refused for start in order], bool)
        self.senders = np.array([self.sender[start] for start in order])
        self.seen_at = np.full(len(order), NEVER)
        self.seen_by: dict[str, np.ndarray] = {}

    def covered(self, ranges: Ranges) -> tuple[np.ndarray, np.ndarray, int]:
        """Return whether all and whether any of each batch is in the ranges.

        The third value is the number of rows that belong to no batch.
        """
        size = int(self.ends[-1]) if len(self.ends) else 0
        there = np.zeros(size + 1, np.int32)
        outside = 0
        for start, end in ranges:
            inside = min(end, size)
            outside += end - max(start, inside)
            there[start:inside] = 1
        before = np.concatenate(([0], np.cumsum(there)))
        rows = before[self.ends] - before[self.starts]
        outside += int(there.sum() - rows.sum())
        return rows == self.ends - self.starts, rows > 0, outside


class Checker:
    """Judges one history."""

    def __init__(self) -> None:
        self.verdict = Verdict()
        self._batches: dict[tuple[str, int], Batches] = {}
        self._reads: list[Event] = []

    def check(self, events: Iterable[Event]) -> Verdict:
        """Return every anomaly of these events."""
        for event in events:
            self._take(event)
        for batches in self._batches.values():
            batches.settle()
        for read in sorted(self._reads, key=lambda read: read["last"]):
            self._check_read(read)
        self._check_ends()
        return self.verdict

    def _take(self, event: Event) -> None:
        verdict, kind = self.verdict, event["is"]
        if kind == "note":
            verdict.notes[event["happened"]] += 1
            return
        if kind == "read":
            verdict.reads += 1
            verdict.broken_off += not event["whole"]
            if not event["t"] <= event["first"] <= event["last"]:
                verdict.add("not a history", f"the times of {_name(event)} run back")
            self._reads.append(event)
            return
        batches = self._batches.setdefault((event["table"], event["writer"]), Batches())
        start, at = event["start"], event["t"]
        if kind == "sent":
            verdict.sent += start not in batches.sent
            batches.sent[start] = min(at, batches.sent.get(start, NEVER))
            batches.sender[start] = event["by"]
            if batches.count.setdefault(start, event["count"]) != event["count"]:
                verdict.add("not a history", f"{_batch(event)} is sent with another size")
            if start in batches.refused:
                verdict.add("not a history", f"{_batch(event)} is sent after its final refusal")
        elif start not in batches.sent or at < batches.sent[start]:
            verdict.add("not a history", f"{_batch(event)} is answered before it is sent")
        elif kind == "kept":
            verdict.kept += start not in batches.kept
            verdict.kept_rows += 0 if start in batches.kept else batches.count[start]
            batches.kept[start] = min(at, batches.kept.get(start, NEVER))
        elif kind == "refused":
            verdict.refused += 1
            batches.refused[start] = at
        else:
            verdict.add("not a history", f"an event {kind!r}")
        if start in batches.kept and start in batches.refused:
            verdict.add("not a history", f"{_batch(event)} is acknowledged and refused")

    def _check_read(self, read: Event) -> None:
        writers = {writer for table, writer in self._batches if table == read["table"]}
        asked = writers if read["only"] is None else writers & {read["only"]}
        strange = {int(writer) for writer in read["rows"]} - asked
        for writer in sorted(strange):
            ranges = read["rows"][str(writer)]
            self._told("never sent", read, writer, f"{_size(ranges)} rows")
        for writer in sorted(asked):
            self._check_writer(read, writer)

    def _check_writer(self, read: Event, writer: int) -> None:
        batches = self._batches[read["table"], writer]
        ranges: Ranges = read["rows"].get(str(writer), [])
        twice: Ranges = read["twice"].get(str(writer), [])
        whole, part, outside = batches.covered(ranges)
        if outside:
            self._told("never sent", read, writer, f"{outside} rows")
        if twice:
            self._told("twice", read, writer, f"{_size(twice)} rows")
        self._told_of("never sent", read, writer, part & (batches.sent_at > read["last"]))
        self._told_of("refused", read, writer, part & batches.is_refused)
        mine = batches.seen_by.setdefault(read["by"], np.full(len(part), NEVER))
        if read["whole"]:
            self._told_of("torn", read, writer, part & ~whole)
            lacks = ~part
            kept = lacks & (batches.kept_at < read["t"])
            own = kept & (batches.senders == read["by"])
            self._told_of("read your writes", read, writer, own)
            self._told_of("lost", read, writer, kept & ~own)
            again = lacks & (mine < read["t"])
            self._told_of("not monotonic", read, writer, again)
            self._told_of(
                "taken back", read, writer, lacks & (batches.seen_at < read["t"]) & ~again
            )
        # Reads are ordered by their ends: the first that shows a batch is the earliest.
        for seen in (mine, batches.seen_at):
            seen[part & (seen == NEVER)] = read["last"]

    def _check_ends(self) -> None:
        last: dict[str, float] = {}
        for read in self._reads:
            if read["whole"] and read["only"] is None:
                last[read["table"]] = max(read["t"], last.get(read["table"], 0.0))
        for (table, writer), batches in sorted(self._batches.items()):
            at = last.get(table, 0.0)
            late = [start for start, kept in batches.kept.items() if kept >= at]
            if late:
                text = f"{table}, writer {writer}: {len(late)} batches, the first at {min(late)}"
                self.verdict.add("not read", text)

    def _told_of(self, rule: str, read: Event, writer: int, broken: np.ndarray) -> None:
        if broken.any():
            batches = self._batches[read["table"], writer]
            first = int(batches.starts[broken.argmax()])
            self._told(rule, read, writer, f"{int(broken.sum())} batches, the first at {first}")

    def _told(self, rule: str, read: Event, writer: int, what: str) -> None:
        self.verdict.add(rule, f"{_name(read)}, writer {writer}: {what}")


def _name(read: Event) -> str:
    times = f"{read['t']:.3f}..{read['last']:.3f}"
    return f"read {times} by {read['by']} ({read['how']}) of {read['table']}"


def _batch(event: Event) -> str:
    return f"batch {event['start']} of writer {event['writer']} in {event['table']}"


def _size(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges)


def main(paths: list[str]) -> int:
    """Print the contents and anomalies of each history; return 1 if any has an anomaly."""
    wrong = 0
    for path in paths:
        verdict = Checker().check(events_of(Path(path)))
        wrong += len(verdict.anomalies)
        print(
            f"{path}: {verdict.sent} batches sent, {verdict.kept} acknowledged"
            f" ({verdict.kept_rows:,} rows), {verdict.refused} refused; {verdict.reads} reads,"
            f" {verdict.broken_off} broken off; {len(verdict.anomalies)} anomalies"
        )
        for rule, number in sorted(Counter(each.rule for each in verdict.anomalies).items()):
            print(f"  {rule}: {number}")
        for rule, text in verdict.anomalies[:MAX_TOLD]:
            print(f"  {rule}: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
