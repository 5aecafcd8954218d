"""Which allocator holds rows, when it gives memory back, and where messages decompress.

Law of this file: one allocator for everything that Arrow allocates and keeps. Some of Arrow takes
the one that Python chose and some its own default, which is settled when pyarrow is imported; two
allocators keep free memory for themselves twice. jemalloc hands pages out again that others fault
in anew.

The room is the exception: another allocator (mimalloc), which has so much memory and no more. What
does not fit fails in the one call that asks for it, with nothing allocated. What clients send
compressed goes there (:mod:`ingester.flight.reception`), as nobody sees how large it is before it
is decompressed, and is taken out as soon as it is known to be wanted.
"""

from __future__ import annotations

import os
import sys
from typing import Any

DECAY_MS = 100
"""Free memory goes back to the system within moments: resident memory follows what the ledger
counts. At once would be too soon: each batch, or row group, would fault in anew what the one before
it left."""

ROOM_BATCHES = 4
"""So many of the largest batches fit into the room at a time, or half of them where
``memory.limit`` is low."""
ROOM_SLACK_BYTES = 32 << 20
"""Of the room beside them: small pieces that many threads have of it."""
_TOO_MUCH_BYTES = 64 << 30
_ROOM_BYTES = "MIMALLOC_RESERVE_OS_MEMORY"

_HUGE_PAGES = "glibc.malloc.hugetlb"


def use_huge_pages() -> None:
    """Start this process's program anew, once, with huge pages in the C library's heap.

    gRPC receives batches there, and to fault them in page by page costs a tenth of a write. glibc
    looks at the setting before any code of the program runs (glibc manual, "Memory Allocation
    Tunables"); a setting of the operator's stays as it is, and other C libraries ignore it.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform == "linux" and _HUGE_PAGES not in tunables:
        os.environ["GLIBC_TUNABLES"] = f"{tunables}:{_HUGE_PAGES}=1".lstrip(":")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def room_bytes(max_batch_bytes: int, limit: int) -> int:
    """How large the room is for ``flight.max_batch_bytes`` and ``memory.limit``."""
    most = ROOM_BATCHES * max_batch_bytes
    return max(most // 2, min(most, limit // 4)) + ROOM_SLACK_BYTES


def choose_allocator(room: int = 288 << 20) -> None:
    """Make jemalloc Arrow's default, unless the environment says otherwise, and lay out the room.

    To be called before pyarrow is imported.

    Args:
        room: its bytes.
    """
    if sys.platform == "linux":
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
    # Read when the library is loaded. Nothing comes from outside the room, and free pages go back.
    os.environ[_ROOM_BYTES] = f"{room >> 10}KiB"
    os.environ["MIMALLOC_DISALLOW_OS_ALLOC"] = "1"
    os.environ["MIMALLOC_PURGE_DELAY"] = "0"
    # What came over the network may lie badly: copied without a warning for each batch.
    os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")


def set_up_allocator() -> None:
    """Use the chosen one from Python too."""
    import pyarrow as pa

    if pa.default_memory_pool().backend_name == "jemalloc":
        pa.jemalloc_set_decay_ms(DECAY_MS)


def find_room() -> Any:
    """The room's memory pool; None where there is none, or where it has no walls."""
    import pyarrow as pa

    if pa.default_memory_pool().backend_name == "mimalloc":
        return None  # of the operator's choice: everything lives there
    try:
        room = pa.mimalloc_memory_pool()
    except NotImplementedError:
        return None
    try:
        pa.allocate_buffer(_TOO_MUCH_BYTES, memory_pool=room)
    except MemoryError:
        return room
    return None
