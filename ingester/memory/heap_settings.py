"""The environment variables by which glibc and Arrow choose how they allocate.

glibc reads its variables before the program starts and Arrow reads its own when pyarrow is
imported, so :func:`lay_out_heap` and :func:`choose_allocator` run first of all. What the operator
has set stays.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

DECAY_MS = 100
"""jemalloc returns free memory to the system after this time. Returning it at once would make each
batch and row group fault in the pages that the previous one freed."""

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
    """Return ``GLIBC_TUNABLES`` for the daemon; tunables that are already set keep their values.

    gRPC receives batches in the C library's heap. Huge pages make a write about a tenth cheaper.
    Each arena keeps its peak size, so there are few. Large messages get mappings of their own,
    which leave no holes in an arena and are returned to the system when they are freed.

    Source: glibc manual, "Memory Allocation Tunables". Other C libraries ignore the variable.
    """
    own = environ.get("GLIBC_TUNABLES", "")
    missing = [
        f"{name}={value}"
        for name, value in _TUNABLES.items()
        if name not in own and _ALIASES.get(name, name) not in environ
    ]
    return ":".join(filter(None, [own, *missing]))


def lay_out_heap() -> None:
    """Set ``GLIBC_TUNABLES`` and execute this program again, once, so that glibc reads it."""
    tunables = heap_tunables(os.environ)
    if sys.platform == "linux" and tunables != os.environ.get("GLIBC_TUNABLES", ""):
        os.environ["GLIBC_TUNABLES"] = tunables
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def choose_allocator() -> None:
    """Make jemalloc Arrow's default pool. Call it before pyarrow is imported.

    Parts of Arrow use the pool that Python chose and others the library's default, which is fixed
    at import. With two allocators, both would keep free memory.
    """
    if sys.platform == "linux":
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
    # Buffers from the network may be unaligned: copy them without a warning for each batch.
    os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")


def set_up_allocator() -> None:
    """Set jemalloc's decay time where jemalloc is the default pool."""
    import pyarrow as pa

    if pa.default_memory_pool().backend_name == "jemalloc":
        pa.jemalloc_set_decay_ms(DECAY_MS)
