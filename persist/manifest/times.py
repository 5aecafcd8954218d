"""Times in manifest files: ISO 8601 by the store's clock, compared as moments and not as text.

Law of this file: pure. Stores differ in how fine their clocks are, so the same moment has more than
one spelling; a time that cannot be read is no time.
"""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str) -> datetime | None:
    """The moment that ``text`` names, in UTC; None where it names none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def is_before(text: str, horizon: str) -> bool:
    """Whether the time ``text`` is before ``horizon``, or cannot be told not to be."""
    at, limit = parse_time(text), parse_time(horizon)
    return at is None or limit is None or at < limit
