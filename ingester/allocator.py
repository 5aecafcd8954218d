"""Which allocator holds rows, and when it gives memory back.

Law of this file: one allocator for everything that Arrow allocates. Some of Arrow takes the one
that Python chose and some its own default, which is settled when pyarrow is imported; two
allocators keep free memory for themselves twice. jemalloc hands pages out again that others fault
in anew.
"""

from __future__ import annotations

import os
import sys

DECAY_MS = 100
"""Free memory goes back to the system within moments: resident memory follows what the ledger
counts. At once would be too soon: each batch, or row group, would fault in anew what the one before
it left."""

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


def choose_allocator() -> None:
    """Make jemalloc Arrow's default, unless the environment says otherwise.

    To be called before pyarrow is imported.
    """
    if sys.platform == "linux":
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
    # What came over the network may lie badly: copied without a warning for each batch.
    os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")


def set_up_allocator() -> None:
    """Use the chosen one from Python too."""
    import pyarrow as pa

    if pa.default_memory_pool().backend_name == "jemalloc":
        pa.jemalloc_set_decay_ms(DECAY_MS)
