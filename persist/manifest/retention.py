"""Which versions of a table are kept: the young ones, and some whatever their age."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, pairwise

import msgspec

from persist.manifest.actions import parse_time
from persist.manifest.files import CommitRecord
from persist.manifest.lineage import read_commit
from persist.manifest.reading import Manifest

KEEP_VERSIONS = 10

_READERS = 8
_AT_ONCE = 64


class Retention(msgspec.Struct, frozen=True):
    """What is kept: versions younger than ``retain_s``, at least ``keep_versions`` of them, and
    unlisted files for ``orphan_grace_s``.
    """

    retain_s: float = 86400.0
    orphan_grace_s: float = 3600.0
    keep_versions: int = KEEP_VERSIONS


def oldest_kept(
    manifest: Manifest,
    first: int,
    head: int,
    now: datetime,
    retention: Retention,
    *,
    published: bool,
) -> int:
    """The lowest version that counts and is young, or one of the last that are always kept.

    Of a published table it is the version before the first young one, current until then.
    """
    limit = max(head - max(retention.keep_versions, 1) + 1, first)
    last = min(limit + 1, head)
    cutoff = now - timedelta(seconds=retention.retain_s)
    before: int | None = None
    for made, following in pairwise(chain(_read_commits(manifest, first, last), [None])):
        if made is None or (made.version < last and not _is_parent(made, following)):
            before = None
            continue  # deleted meanwhile, or made by a writer that was paused during a collection
        at = parse_time(made.at)
        young = at is None or at > cutoff
        if young or made.version >= limit:
            return before if before is not None and young and published else made.version
        before = made.version
    return last


def _is_parent(made: CommitRecord, following: CommitRecord | None) -> bool:
    return following is not None and following.parent == made.uid


def _read_commits(manifest: Manifest, first: int, last: int) -> Iterator[CommitRecord | None]:
    read = partial(read_commit, manifest.store, manifest.folder)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="clean-up") as pool:
        for start in range(first, last + 1, _AT_ONCE):
            yield from pool.map(read, range(start, min(start + _AT_ONCE, last + 1)))
