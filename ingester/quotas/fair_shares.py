"""The rule of fair shares: namespaces above an equal share are refused first.

    0                                    limit - reserve            limit
    ├── all ─────────────────────────────┼── below an equal share ──┤ none

An equal share is the limit divided by the number of namespaces that use it or want to, at least
two. The reserve is an eighth of the limit. One namespace alone can use seven eighths, so a second
one finds room at once; while the first is above its share, freed memory goes to others until the
reserve is free again. A namespace that uses nothing is refused only by the limit itself. Pure
integers.

Source: buffer sharing with a reserve for newcomers, as in A. Choudhury, E. Hahne, "Dynamic Queue
Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking, 1998.
"""

from __future__ import annotations

RESERVE_PART = 8
"""The part of a limit reserved for those below their share: an eighth."""


def equal_share(limit: int, sharers: int) -> int:
    """Return an equal share; one sharer alone leaves room for a second."""
    return limit // max(2, sharers)


def reserve(limit: int) -> int:
    """Return the part of a limit reserved for those below their share."""
    return limit // RESERVE_PART


def bound(limit: int, own: int, sharers: int) -> int:
    """Return the total use up to which a sharer may take more.

    Args:
        own: what it uses, including what it asks for.
        sharers: the number of those who use something, itself included.
    """
    return limit if own <= equal_share(limit, sharers) else limit - reserve(limit)
