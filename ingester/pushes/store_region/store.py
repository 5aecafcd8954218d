"""The store of one region, and what its errors mean for a push.

    with region.reached() as store: …     a store that is away, or not what it was, is unreachable

Law of this file: what is not known to be refused is unreachable, and asked again. A folder that is
not there is away, and not empty: a file system that was not mounted must not look like a region
that has no tables yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ingester.client.errors import ClientError
from ingester.pushes.push_config import PushConfigError, RegionSettings
from ingester.pushes.regions import RegionFailed, RegionUnreachable
from persist.manifest import ManifestError
from persist.store import (
    ObjectStore,
    StoreError,
    StoreRetry,
    StoreUnsuitable,
    check_store,
    open_store,
)

QUICK: dict[str, float] = {"connect_timeout_s": 5.0, "read_timeout_s": 10.0}
"""How long one call of an S3 server may take, unless the region's options say otherwise: a region
that hangs must not keep an abort from being heard for minutes."""
PATIENCE = StoreRetry(first_s=0.1, cap_s=1.0, attempts=3)
"""A commit whose answer is lost is tried so often before the region counts as unreachable."""
_LOCAL = "file://"


@dataclass(frozen=True, slots=True)
class RegionStore:
    """A region's name and its opened store; threads may share it."""

    name: str
    store: ObjectStore

    @classmethod
    def open(cls, settings: RegionSettings) -> Self:
        """Return the region's store; nothing is contacted yet.

        Raises:
            PushConfigError: its URL or an option cannot be understood.
        """
        options: dict[str, Any] = dict(settings.storage_options)
        if settings.url.startswith(("s3://", "s3a://")):
            options = {**QUICK, **options}
        try:
            return cls(settings.name, open_store(settings.url, **options))
        except (ValueError, StoreUnsuitable) as exc:
            raise PushConfigError(f"regions.{settings.name}: {exc}") from exc

    def check(self) -> None:
        """Find out whether a table's versions can be entrusted to the store, which is written to.

        Raises:
            RegionUnreachable: it is away.
            RegionFailed: it takes a conditional create for a put, or loses what was put: two pushes
                could both own one version.
        """
        with self.reached() as store:
            try:
                check_store(store)
            except StoreUnsuitable as exc:
                raise RegionFailed(str(exc)) from exc

    @contextmanager
    def reached(self) -> Iterator[ObjectStore]:
        """Give the store; what it raises within the block becomes an error of the region.

        Raises:
            RegionUnreachable: the store or a daemon is away, or what is there cannot be read.
            RegionFailed: the block has raised it.
        """
        url = self.store.url
        try:
            there = not url.startswith(_LOCAL) or Path(url.removeprefix(_LOCAL)).is_dir()
        except OSError as exc:
            reason = f"the folder of its store is not there: {url}: {exc.strerror}"
            raise RegionUnreachable(reason) from exc
        if not there:
            raise RegionUnreachable(f"the folder of its store is not there: {url}")
        try:
            yield self.store
        except (RegionFailed, RegionUnreachable):
            raise
        except (StoreError, ManifestError, ClientError) as exc:
            raise RegionUnreachable(f"{type(exc).__name__}: {exc}") from exc
