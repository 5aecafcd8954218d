"""The rule of fair shares: whoever has more than an equal share is refused first.

    0                                         limit - reserve         limit
    ├── anybody ──────────────────────────────┼── who has less ───────┤ nobody
                                                than its share

An equal share is the limit divided by the number of those who have something, or want it now; by
two where that is one. The reserve is an eighth of the limit. So one alone has seven eighths, and
whoever comes then finds the rest; and while the one has more than its share, it gets nothing of
what comes free until there is more than the reserve.

Law of this file: pure, and whole numbers alone. Who has nothing is never refused by it for the
want of a share, only by the limit itself.

Source: buffer sharing with a reserve for newcomers, as in A. Choudhury, E. Hahne, "Dynamic Queue
Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking, 1998.
"""

from __future__ import annotations

RESERVE_PART = 8
"""The part of a limit that is kept for those with less than their share: an eighth."""


def equal_share(limit: int, sharers: int) -> int:
    """The share of each of so many; with one alone, there is always room for another's."""
    return limit // max(2, sharers)


def reserve(limit: int) -> int:
    """What is kept of a limit for those who have less than their share."""
    return limit // RESERVE_PART


def bound(limit: int, own: int, sharers: int) -> int:
    """The use in all up to which somebody may take more.

    Args:
        own: what it has, with what it asks for.
        sharers: the number of those who have something, itself included.
    """
    return limit if own <= equal_share(limit, sharers) else limit - reserve(limit)
