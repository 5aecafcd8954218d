"""The daemons of one region, as a push talks to them: about rows, and about followers.

    persist             rows that are acknowledged are in files
    followers_prepare   {namespace, table, table_version, push_id}      a version is on its way
    followers           {namespace, table} ─▶ {name, alive, table_version, prepared: […]} each

Law of this file: a daemon that does not answer makes the region unreachable, as it may have
followers; one that knows no followers, or not the table, has none. Nothing is retried here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ingester.client.client import Client
from ingester.client.connection_options import ConnectionOptions
from ingester.client.errors import ClientError, NotFound, Unimplemented
from ingester.client.retry import NEVER
from ingester.client.wire import Persisted
from ingester.pushes.regions import RegionUnreachable

CALL_S = 10.0
"""One call takes so long at most; a persist takes longer."""
PERSIST_S = 30.0
T = TypeVar("T")


class Follower(msgspec.Struct, frozen=True):
    """A follower of a table, as a daemon knows it; fields that are not known are left out."""

    name: str
    alive: bool = True
    table_version: int | None = None
    """The version that it shows."""
    prepared: tuple[int, ...] = ()
    """The versions that it could show at once."""

    def is_ready(self, version: int) -> bool:
        """Return whether nobody has to wait for it before the table goes to a version."""
        return not self.alive or version == self.table_version or version in self.prepared


@dataclass(frozen=True, slots=True)
class RegionDaemons:
    """The endpoints of a region's daemons; there may be none.

    Each call raises :class:`RegionUnreachable` where one of them does not answer.
    """

    endpoints: Sequence[str]
    connection: ConnectionOptions = ConnectionOptions()  # noqa: RUF009 (frozen)

    def persist(self, namespace: str, table: str) -> Mapping[int, int]:
        """Have each daemon put into files what it has acknowledged of the table.

        Returns:
            The version of the manifest that has all of that, by the version of the table whose
            manifest it is. A daemon that nobody has asked for the table since it was switched may
            still be at the version before.
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
        """Tell the followers of the table that a version of it is on its way."""
        body = {
            "namespace": namespace,
            "table": table,
            "table_version": version,
            "push_id": push_id,
        }
        self._act("followers_prepare", body)

    def lagging(self, namespace: str, table: str, version: int) -> list[str]:
        """Return the names of the followers that could not show the version at once."""
        told = self._act("followers", {"namespace": namespace, "table": table})
        found = set()
        for endpoint, each in told:
            try:
                follower = msgspec.convert(each, Follower)
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
