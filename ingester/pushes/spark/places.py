"""One file into the stores of several regions at once.

    encoded once ─▶ put ─┬▶ a thread ─▶ region a
                         ├▶ a thread ─▶ region b     which of them took it is kept, by file
                         └▶ a thread ─▶ region c

Law of this file: the same bytes go to each. A region that does not take a file is left out from
then on, and what it lacks is copied to it afterwards; only where no region takes a file it is an
error. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from persist.store import PutInfo, StoreError, StoreRetry, open_store, retry

PATIENCE = StoreRetry(first_s=0.1, cap_s=2.0, for_s=15.0)
"""A region that is away is asked again for so long, while the other ones wait."""


class Place(NamedTuple):
    """The folder of a table version in the store of one region; it is pickled.

    Attributes:
        root: The folder, in which the paths of the version's files begin.
    """

    region: str
    url: str
    storage_options: dict[str, Any]
    root: str


class _Store(Protocol):
    def put(self, path: str, data: pa.Buffer) -> PutInfo: ...


class Places:
    """The stores of some regions, as a ``FileStore`` that is all of them. One thread."""

    def __init__(self, places: Sequence[Place], policy: StoreRetry = PATIENCE) -> None:
        self._open: dict[str, tuple[_Store, str]] = {
            place.region: (open_store(place.url, **place.storage_options), place.root)
            for place in places
        }
        self._policy = policy
        self._threads = ThreadPoolExecutor(max(1, len(places)), thread_name_prefix="put")
        self.taken: dict[str, dict[str, str]] = {}
        """The regions that have a file, by its path, each with its store's time (ISO 8601)."""
        self.away: dict[str, str] = {}
        """The regions that are left out, each with the reason."""

    def __enter__(self) -> Places:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown()

    def put(self, path: str, data: pa.Buffer) -> PutInfo:
        """Put a file into each store that has not failed yet, and return what one of them said.

        Raises:
            StoreError: No store has taken it; another attempt of the task may go on.
        """
        calls = {
            region: self._threads.submit(partial(self._put, store, f"{root}/{path}", data))
            for region, (store, root) in self._open.items()
        }
        infos: dict[str, PutInfo] = {}
        failed: StoreError | None = None
        for region, call in calls.items():
            try:
                infos[region] = call.result()
            except StoreError as exc:
                self._open.pop(region)
                self.away[region] = str(exc)
                failed = exc
        if not infos:
            reasons = "; ".join(f"{region}: {reason}" for region, reason in self.away.items())
            raise StoreError(f"no region takes {path}: {reasons}") from failed
        self.taken[path] = _times(infos)
        return next(iter(infos.values()))

    def _put(self, store: _Store, path: str, data: pa.Buffer) -> PutInfo:
        return retry(lambda: store.put(path, data), self._policy)


def _times(infos: Mapping[str, PutInfo]) -> dict[str, str]:
    return {region: info.at.isoformat() for region, info in infos.items()}
