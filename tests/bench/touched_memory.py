"""Touches memory once before the servers of a run use it.

The host of a virtual machine may reclaim free memory in blocks of 2 MiB and return it page by
page. The first touch of such a page takes ten times as long as that of another. A measurement of
a program that fills memory then depends on how much memory happens to be in such blocks, and two
servers would be compared by luck.

All pages are touched, then all but one of each block are freed. The retained page keeps the
block from being whole, and the kernel hands out partial blocks first. Every server of a run gets
such pages in the same way, unless files that are written meanwhile take them all.
"""

from __future__ import annotations

import mmap
import time

import numpy as np

from ingester.memory.machine import usable_bytes

_BLOCK_BYTES = 2 << 20
_SAMPLE_BYTES = 64 << 20


class TouchedMemory:
    """Holds one page of each block for the duration of the ``with`` block.

    Args:
        nbytes: The memory that others can get, at most half of the available memory.
    """

    def __init__(self, nbytes: int) -> None:
        self._size = min(nbytes, usable_bytes() // 2) // _BLOCK_BYTES * _BLOCK_BYTES
        self._memory: mmap.mmap | None = None
        self.first_touch_us = 0.0
        """Mean time to touch a page for the first time."""
        self.touch_us = 0.0
        """Mean time to touch a page that was touched before."""

    def __enter__(self) -> TouchedMemory:
        memory = self._memory = _anonymous(self._size)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.first_touch_us = _touch_us(memory, self._size)
        for start in range(0, self._size, _BLOCK_BYTES):
            memory.madvise(mmap.MADV_DONTNEED, start + mmap.PAGESIZE, _BLOCK_BYTES - mmap.PAGESIZE)
        sample = min(_SAMPLE_BYTES, self._size)
        with _anonymous(sample) as again:
            self.touch_us = _touch_us(again, sample)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._memory is not None
        self._memory.close()


def _anonymous(size: int) -> mmap.mmap:
    # Private: shared memory uses another kind of page.
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _touch_us(memory: mmap.mmap, size: int) -> float:
    began = time.perf_counter()
    np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
    return (time.perf_counter() - began) / (size // mmap.PAGESIZE) * 1e6
