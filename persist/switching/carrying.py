"""Files of streamed rows, on their way from one table version to another.

Law of this file: a file keeps its name, so that whoever copies it again does the same again, and
one that is there is not copied twice. Copies that no version lists are garbage as any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import msgspec

from persist.manifest import Add, Manifest
from persist.prefetch import two_at_once


def copied(
    source: Manifest, target: Manifest, adds: Iterable[Add], *, anew: bool = False
) -> Iterator[Add]:
    """The files, in the folder of the table version that they go to; two at a time in memory.

    Args:
        anew: Also those that are there: clean-up may be about to take them.

    Raises:
        StoreError: Repeat it.
    """
    yield from two_at_once(partial(_copied, source, target, add, anew) for add in adds)


def _copied(source: Manifest, target: Manifest, add: Add, anew: bool) -> Add:
    path = target.object_path(add.path)
    there = None if anew else target.store.exists(path)
    if there is not None and there.bytes == add.bytes:
        return msgspec.structs.replace(add, at=there.at.isoformat())
    put = target.store.put(path, source.store.get(source.object_path(add.path)))
    return msgspec.structs.replace(add, at=put.at.isoformat())
