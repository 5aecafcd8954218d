"""Memory that was touched once before the servers of a run use it.

A virtual machine's host may take free memory back, in blocks of 2 MiB, and brings it again page by
page: the first touch of such a page takes ten times as long as another one. Who fills memory is
then measured by how much of it happens to be free in such blocks, and two servers that stand beside
each other by their luck.

Law of this file: pages are touched, then given back all but one of each block, which keeps the
block from being whole; the kernel hands them out before blocks that are. Every server of a run gets
of them in the same way, as long as files that are written meanwhile do not take them all.
"""

from __future__ import annotations

import mmap
import time

import numpy as np

from ingester.memory.machine import usable_bytes

_BLOCK_BYTES = 2 << 20
_SAMPLE_BYTES = 64 << 20


class TouchedMemory:
    """Holds a page of each block while the ``with`` lasts.

    Args:
        nbytes: how much there is to be had by others, at most half of what may be used.
    """

    def __init__(self, nbytes: int) -> None:
        self._size = min(nbytes, usable_bytes() // 2) // _BLOCK_BYTES * _BLOCK_BYTES
        self._memory: mmap.mmap | None = None
        self.first_touch_us = 0.0
        """Of a page, on average over all."""
        self.touch_us = 0.0
        """Of a page that was touched before."""

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
    # Private: shared memory is another kind of page.
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _touch_us(memory: mmap.mmap, size: int) -> float:
    began = time.perf_counter()
    np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
    return (time.perf_counter() - began) / (size // mmap.PAGESIZE) * 1e6
