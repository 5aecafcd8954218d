"""The record of bytes that checkpoints share: they stand in a segment once.

    shared payload ─ the bytes themselves, which operations name by their SHA-256

Law of this file: the log puts the record before the first operation of a segment that names it.
Any thread.
"""

from __future__ import annotations

import weakref

from ingester.origins.checkpoint_state import SharedBytes
from wal import Preamble, RecordKind

# The identity of a preamble is what the log knows it by. Two threads that make one at the same
# time cost a second record in a segment, no more.
_preambles: weakref.WeakKeyDictionary[SharedBytes, Preamble] = weakref.WeakKeyDictionary()


def preamble_of(shared: SharedBytes) -> Preamble:
    """Find the record of these bytes, or make it."""
    known = _preambles.get(shared)
    if known is None:
        known = _preambles[shared] = Preamble(RecordKind.SHARED, (shared.state,))
    return known
