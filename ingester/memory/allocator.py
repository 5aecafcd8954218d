"""The allocator that holds rows, when it gives memory back, and where messages decompress.

Law of this file: one allocator for everything that Arrow allocates and keeps. Some of Arrow takes
the one that Python chose and some its own default, which is settled when pyarrow is imported; two
allocators keep free memory for themselves twice. jemalloc hands pages out again that others fault
in anew.

The decompression pool is the exception: another allocator (mimalloc), which has so much memory
and no more. What does not fit fails in the one call that asks for it, with nothing allocated.
What clients send compressed goes there (:mod:`ingester.server.flight.reception`), as nobody sees
how large it is before it is decompressed, and is copied out as soon as it is known to be let in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

DECAY_MS = 100
"""Free memory goes back to the system within moments: resident memory follows what the ledger
counts. At once would be too soon: each batch, or row group, would fault in anew what the one before
it left."""

POOL_BATCHES = 4
"""The number of largest batches that fit into the pool at a time; half of them where
``memory.limit`` is low."""
_CHUNK_BYTES = 32 << 20
"""mimalloc divides its pool into chunks of this size, and keeps some of each for itself: what is
larger needs one more than it fills."""
_THREAD_BYTES, _MOST_THREADS = 8 << 20, 16
"""The bytes that a thread which decompresses may keep of the pool in small pieces."""
_TOO_MUCH_BYTES = 64 << 30
_POOL_BYTES = "MIMALLOC_RESERVE_OS_MEMORY"

_TUNABLES = {
    "glibc.malloc.hugetlb": 1,
    "glibc.malloc.arena_max": 3,
    "glibc.malloc.mmap_threshold": 4 << 20,
    "glibc.malloc.trim_threshold": 32 << 20,
}
_ALIASES = {
    "glibc.malloc.arena_max": "MALLOC_ARENA_MAX",
    "glibc.malloc.mmap_threshold": "MALLOC_MMAP_THRESHOLD_",
    "glibc.malloc.trim_threshold": "MALLOC_TRIM_THRESHOLD_",
}
"""The older names, as variables of their own."""


def heap_tunables(environ: Mapping[str, str]) -> str:
    """Return ``GLIBC_TUNABLES`` as the daemon wants it; what the operator has set stays as it is.

    Huge pages: gRPC receives batches in the C library's heap, and to fault them in page by page
    costs a tenth of a write. Few arenas: each keeps what its busiest moment took, and glibc would
    have eight for each core. Large messages on their own: they leave no holes in an arena that the
    next one does not fit into, and go back to the system at once; glibc would do so only until the
    first of them is freed. Hostile clients made arenas hold more free memory than was in use.

    Source: glibc manual, "Memory Allocation Tunables". Other C libraries ignore them.
    """
    own = environ.get("GLIBC_TUNABLES", "")
    missing = [
        f"{name}={value}"
        for name, value in _TUNABLES.items()
        if name not in own and _ALIASES.get(name, name) not in environ
    ]
    return ":".join(filter(None, [own, *missing]))


def lay_out_heap() -> None:
    """Start this process's program anew, once, with the heap as the daemon wants it.

    glibc looks at its settings before any code of the program runs.
    """
    tunables = heap_tunables(os.environ)
    if sys.platform == "linux" and tunables != os.environ.get("GLIBC_TUNABLES", ""):
        os.environ["GLIBC_TUNABLES"] = tunables
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def pool_bytes(max_batch_bytes: int, limit: int) -> int:
    """Return the pool's size for ``flight.max_batch_bytes`` and ``memory.limit``."""
    few = limit < 4 * POOL_BATCHES * max_batch_bytes
    batch_bytes = 2 * max_batch_bytes
    if max_batch_bytes > _CHUNK_BYTES // 2:
        batch_bytes = (-(-max_batch_bytes // _CHUNK_BYTES) + 1) * _CHUNK_BYTES
    return (POOL_BATCHES // 2 if few else POOL_BATCHES) * batch_bytes + pool_slack_bytes()


def pool_slack_bytes() -> int:
    """Return the bytes of the pool that are not for batches."""
    threads = min(os.cpu_count() or 1, _MOST_THREADS)
    return _CHUNK_BYTES + threads * _THREAD_BYTES


def choose_allocator(pool: int = 448 << 20) -> None:
    """Make jemalloc Arrow's default, unless the environment says otherwise; size the other pool.

    To be called before pyarrow is imported.

    Args:
        pool: its bytes.
    """
    if sys.platform == "linux":
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
    # Read when the library is loaded. Nothing comes from outside the pool, and free pages go back.
    os.environ[_POOL_BYTES] = f"{pool >> 10}KiB"
    os.environ["MIMALLOC_DISALLOW_OS_ALLOC"] = "1"
    os.environ["MIMALLOC_PURGE_DELAY"] = "0"
    # What came over the network may lie badly: copied without a warning for each batch.
    os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")


def set_up_allocator() -> None:
    """Use the chosen allocator from Python, too."""
    import pyarrow as pa

    if pa.default_memory_pool().backend_name == "jemalloc":
        pa.jemalloc_set_decay_ms(DECAY_MS)


def find_bounded_pool() -> Any:
    """Return the decompression pool; None where there is none, or where it has no bound."""
    import pyarrow as pa

    if pa.default_memory_pool().backend_name == "mimalloc":
        return None  # of the operator's choice: everything lives there
    try:
        pool = pa.mimalloc_memory_pool()
        pa.allocate_buffer(1 << 20, memory_pool=pool)
    except (NotImplementedError, MemoryError):
        return None  # Arrow was built without it, or the system had no memory to reserve
    try:
        pa.allocate_buffer(_TOO_MUCH_BYTES, memory_pool=pool)
    except MemoryError:
        return pool
    return None
