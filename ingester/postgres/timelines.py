"""The history of the source's log: its timelines, and how far two histories agree.

    timeline 1  ────────────┬───── lost with the old primary
                            └ 2 ───────┬──────
                                       └ 3 ─▶     history: (1, 0), (2, 1st branch), (3, 2nd)

A promoted standby continues the log on a new timeline. A position says what was read only together
with its history: beyond the branch point both timelines have the same positions and other changes.
Two standbys that are promoted at the same position get equal histories: PostgreSQL does not tell
them apart either.
"""

from __future__ import annotations

from typing import Any

from ingester.postgres.connection import ask
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.states import History

KEPT = 16
_NO_FILE = "58P01"


def read_history(connection: Any) -> History:
    """The history of the log of the server behind a replication connection.

    A connection keeps its server, and a primary its timeline, so it holds for all that is read by
    the connection.
    """
    import psycopg2

    [(_, number, *_)] = ask(connection, "IDENTIFY_SYSTEM")
    if number == 1:
        return ((1, 0),)
    try:
        [(_, content)] = ask(connection, f"TIMELINE_HISTORY {int(number)}")
    except psycopg2.OperationalError as exc:
        if getattr(exc.__cause__, "pgcode", None) != _NO_FILE:
            raise
        content = ""  # The server, too, then takes the timeline for one without a parent.
    return parse_history(int(number), content)


def parse_history(number: int, content: str | bytes | memoryview) -> History:
    """The history by a timeline's history file: lines of timeline, its end, and a comment.

    Raises:
        SourceFailed: not such a file.
    """
    text = content if isinstance(content, str) else bytes(content).decode(errors="replace")
    found: list[tuple[int, int]] = []
    begins = 0
    try:
        for line in text.splitlines():
            words = line.split()
            if words and not words[0].startswith("#"):
                high, _, low = words[1].partition("/")
                found.append((int(words[0]), begins))
                begins = (int(high, 16) << 32) + int(low, 16)
    except (ValueError, IndexError) as exc:
        raise SourceFailed(f"the history of timeline {number} cannot be read: {text!r}") from exc
    return (*found, (number, begins))


def shared_upto(one: History, other: History) -> int | None:
    """The position up to which two histories are the same log; None if they are equal."""
    for at in reversed(range(len(one))):
        if one[at] in other:
            there = other.index(one[at])
            if at + 1 == len(one) and there + 1 == len(other):
                return None
            ends = [h[k + 1][1] for h, k in ((one, at), (other, there)) if k + 1 < len(h)]
            return min(ends)
    return 0


def kept(history: History) -> History:
    """The newest timelines, which a state keeps: positions are on those."""
    return history[-KEPT:]


def lsn_text(lsn: int) -> str:
    """The position as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
