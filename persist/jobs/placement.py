"""Which worker serves a partition: consistent hashing, so that one partition stays in order.

Law of this file: pure; the same key goes to the same of ``n`` workers in every process, and of
``n + 1`` workers only one key in ``n + 1`` moves. The algorithm is Lamping and Veach, "A Fast,
Minimal Memory, Consistent Hash Algorithm", 2014.
"""

from __future__ import annotations

import mmh3

_MASK = (1 << 64) - 1


def worker_for(key: str, workers: int) -> int:
    """The worker, ``0 <= worker < workers``, that serves this key."""
    seed = mmh3.hash64(key.encode(), signed=False)[0]
    chosen, candidate = -1, 0
    while candidate < workers:
        chosen = candidate
        seed = (seed * 2_862_933_555_777_941_757 + 1) & _MASK
        candidate = int((chosen + 1) * ((1 << 31) / ((seed >> 33) + 1)))
    return chosen
