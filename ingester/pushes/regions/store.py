"""One region's store and daemons, and what their errors mean for a push.

    with region.reached() as store: …     errors of the store become RegionUnreachable

    persist             write acknowledged rows into files
    followers_prepare   {namespace, table, table_version, push_id}      announce a generation
    followers           {namespace, table} ─▶ {name, alive, table_version, prepared: […]} each

Anything that is not known to be refused counts as unreachable and is retried. A missing folder is
unreachable, not empty: an unmounted file system must not look like a region without tables. A
daemon that does not answer makes the region unreachable, as it may have followers; one that does
not know followers, or the table, has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from ingester.client.client import Client
from ingester.client.credentials import ConnectionOptions
from ingester.client.errors import ClientError, NotFound, Unimplemented
from ingester.client.retry import NEVER
from ingester.client.wire import Persisted
from ingester.pushes.config import PushConfigError, RegionSettings
from ingester.pushes.tasks import RegionFailed, RegionUnreachable
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
"""Time limits of S3 calls unless the region sets its own: an unresponsive region must not delay an
abort for minutes."""
PATIENCE = StoreRetry(first_s=0.1, cap_s=1.0, attempts=3)
"""The attempts of a commit before the region counts as unreachable."""
_LOCAL = "file://"
CALL_S = 10.0
"""The time limit of a call, except for a persist."""
PERSIST_S = 30.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RegionStore:
    """A region's name and its open store. Thread-safe."""

    name: str
    store: ObjectStore

    @classmethod
    def open(cls, settings: RegionSettings) -> Self:
        """Return the region's store without contacting it.

        Raises:
            PushConfigError: its URL or an option is invalid.
        """
        options: dict[str, Any] = dict(settings.store_options)
        if settings.url.startswith(("s3://", "s3a://")):
            options = {**QUICK, **options}
        try:
            return cls(settings.name, open_store(settings.url, **options))
        except (ValueError, StoreUnsuitable) as exc:
            raise PushConfigError(f"regions.{settings.name}: {exc}") from exc

    def check(self) -> None:
        """Check, by writing to it, that the store keeps what pushes rely on.

        Raises:
            RegionUnreachable: it does not answer.
            RegionFailed: it ignores the condition of a create, or loses objects: two pushes could
                own one generation.
        """
        with self.reached() as store:
            try:
                check_store(store)
            except StoreUnsuitable as exc:
                raise RegionFailed(str(exc)) from exc

    @contextmanager
    def reached(self) -> Iterator[ObjectStore]:
        """Yield the store; its errors within the block become errors of the region.

        Raises:
            RegionUnreachable: the store or a daemon does not answer, or cannot be read.
            RegionFailed: raised by the block.
        """
        url = self.store.url
        try:
            exists = not url.startswith(_LOCAL) or Path(url.removeprefix(_LOCAL)).is_dir()
        except OSError as exc:
            reason = f"the folder of its store does not exist: {url}: {exc.strerror}"
            raise RegionUnreachable(reason) from exc
        if not exists:
            raise RegionUnreachable(f"the folder of its store does not exist: {url}")
        try:
            yield self.store
        except (RegionFailed, RegionUnreachable):
            raise
        except (StoreError, ManifestError, ClientError) as exc:
            raise RegionUnreachable(f"{type(exc).__name__}: {exc}") from exc


class RegisteredFollower(msgspec.Struct, frozen=True):
    """A follower of a table, as a daemon reports it; unknown fields are ignored."""

    name: str
    alive: bool = True
    table_version: int | None = None
    """The generation that its readers see."""
    prepared: tuple[int, ...] = ()
    """Other generations of which it has a copy."""

    def is_ready(self, version: int) -> bool:
        """Return whether a swap to this generation need not wait for it."""
        return not self.alive or version == self.table_version or version in self.prepared


@dataclass(frozen=True, slots=True)
class RegionDaemons:
    """The daemons of a region; there may be none.

    Each call raises :class:`RegionUnreachable` if one of them does not answer.
    """

    endpoints: Sequence[str]
    connection: ConnectionOptions = ConnectionOptions()  # noqa: RUF009 (frozen)

    def persist(self, namespace: str, table: str) -> Mapping[int, int]:
        """Make each daemon flush what it has acknowledged for the table.

        Returns:
            The manifest version that contains all of it, by generation. A daemon that was not asked
            for the table since a swap may still be at the previous generation.
        """

        def call(client: Client) -> list[Persisted]:
            return client.persist(namespace, table, timeout_s=PERSIST_S)

        none: list[Persisted] = []
        told = [each for at in self.endpoints for each in self._asked(at, call, none)]
        newest: dict[int, int] = {}
        for each in told:
            if each.manifest_version and each.table_version:
                before = newest.get(each.table_version, 0)
                newest[each.table_version] = max(before, each.manifest_version)
        return newest

    def prepare(self, namespace: str, table: str, version: int, push_id: str) -> None:
        """Announce a generation to the followers of the table."""
        body = {
            "namespace": namespace,
            "table": table,
            "table_version": version,
            "push_id": push_id,
        }
        self._act("followers_prepare", body)

    def lagging(self, namespace: str, table: str, version: int) -> list[str]:
        """Return the names of the live followers that have no copy of the generation."""
        told = self._act("followers", {"namespace": namespace, "table": table})
        found = set()
        for endpoint, each in told:
            try:
                follower = msgspec.convert(each, RegisteredFollower)
            except msgspec.ValidationError as exc:
                raise RegionUnreachable(f"{endpoint}: {exc}") from exc
            if not follower.is_ready(version):
                found.add(follower.name)
        return sorted(found)

    def _act(self, kind: str, body: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        def call(client: Client) -> list[dict[str, Any]]:
            return client.action(kind, body)

        none: list[dict[str, Any]] = []
        answers = [(endpoint, self._asked(endpoint, call, none)) for endpoint in self.endpoints]
        return [(endpoint, each) for endpoint, found in answers for each in found]

    def _asked(self, endpoint: str, call: Callable[[Client], T], unknown: T) -> T:
        options = self.connection
        try:
            with Client(endpoint, timeout_s=CALL_S, retry=NEVER, options=options) as client:
                return call(client)
        except (Unimplemented, NotFound):
            return unknown
        except ClientError as exc:
            raise RegionUnreachable(f"daemon {endpoint}: {exc}") from exc
