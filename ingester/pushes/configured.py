"""The pushes of one configuration file: where they are stored, and what a leader of them needs.

The commands and the controller start here. Hooks are loaded only to lead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ingester.pushes.config import PushConfig, PushConfigError, read_push_config
from ingester.pushes.driver import utc_now
from ingester.pushes.hook_calls import HookTally
from ingester.pushes.hook_loading import load_hooks
from ingester.pushes.hook_runner import HookFailure, HookRunner
from ingester.pushes.leading import HEARTBEAT, Leadership, controller_name, leader_of, push_status
from ingester.pushes.record import PushRecord
from ingester.pushes.regions.region import open_regions
from ingester.pushes.regions.store import RegionStore
from ingester.pushes.store import PushDamaged, PushNotFound, PushStore, push_folders
from ingester.pushes.tasks import RegionFailed, RegionUnreachable
from ingester.reports.pushes import KeptIn, Leader, status_path
from persist.store import ObjectStore, StoreRetry

_SHORT = StoreRetry(first_s=0.2, cap_s=1.0, for_s=10.0)
"""How long an unreachable store is retried while a person waits."""
Facts = dict[str, Any]
"""The JSON form of ``ingester.reports.pushes.PushStatus``, with further keys:

``params``, ``led``, ``led_by``, ``told_s`` (the age of the last heartbeat) and ``requests``.
"""


@dataclass(frozen=True)
class ConfiguredPushes:
    """A configuration, and the store of its pushes: that of its first region."""

    config: PushConfig
    home: RegionStore

    @classmethod
    def read(cls, file: Path) -> ConfiguredPushes:
        """Return the pushes of a configuration file; nothing is contacted.

        Raises:
            PushConfigError, HookConfigError: the file cannot be read, or is invalid.
        """
        config = read_push_config(file)
        try:
            return cls(config, RegionStore.open(config.regions[0]))
        except PushConfigError as exc:
            raise PushConfigError(f"{file}: {exc}") from exc

    @property
    def store(self) -> ObjectStore:
        """The store of the pushes."""
        return self.home.store

    @property
    def pushes(self) -> PushStore:
        """The stored pushes."""
        return PushStore(self.store, _SHORT)

    def check_reachable(self) -> None:
        """Raise ``RegionUnreachable`` if the store is a folder that does not exist.

        A folder that is not mounted must not look like one without pushes.
        """
        with self.home.reached():
            pass

    def leadership(self, tell: Callable[[HookFailure], None]) -> tuple[Leadership, HookRunner]:
        """Return what a leader of these pushes needs, and its hooks.

        Raises:
            PushConfigError, HookConfigError: a hook or a region is invalid.
        """
        config = self.config
        tally = HookTally()
        runner = HookRunner(config.hooks, load_hooks(config.hooks, tally), tell, tally)
        open_regions(config.regions)
        made = Leadership(
            store=self.store,
            controller=controller_name(),
            regions=lambda: open_regions(config.regions),
            panel=runner,
            rules=config.rules(),
        )
        return made, runner

    def facts(self, push_id: str, events: int = 20) -> tuple[Facts, PushRecord]:
        """Return the facts of a push with its newest events, and its record.

        Raises:
            PushNotFound, PushDamaged, StoreError: it cannot be read.
        """
        return self._facts(push_id, events, has_requests=True, has_leader=True)

    def all_facts(self) -> tuple[list[Facts], list[tuple[str, str]]]:
        """Return the facts of all pushes, newest first, and unreadable ones as (id, reason).

        Raises:
            StoreError: the store does not answer.
        """
        found, unreadable = [], []
        for folder in push_folders(self.store):
            try:
                facts, _ = self._facts(
                    folder.push_id, 0, folder.requests > 0, folder.leader_at is not None
                )
                found.append(facts)
            except PushNotFound:
                continue  # it is being deleted
            except PushDamaged as exc:
                unreadable.append((folder.push_id, str(exc)))
        found.sort(key=lambda facts: str(facts["began_at"]), reverse=True)
        return found, unreadable

    def _facts(
        self, push_id: str, events: int, has_requests: bool, has_leader: bool
    ) -> tuple[Facts, PushRecord]:
        saved = self.pushes.newest(push_id)
        record = saved.record
        requests = self.pushes.requests(push_id) if has_requests else []
        last = leader_of(self.store, push_id) if has_leader else None
        kept_in = KeptIn(region=self.home.name, url=self.store.url)
        leader = Leader(controller=saved.controller, at=saved.at)
        facts: Facts = msgspec.to_builtins(push_status(record, kept_in, leader, events))
        facts["params"] = dict(record.params)
        facts["led"] = last is not None and last.age <= HEARTBEAT.gone_after
        facts["led_by"] = None if last is None else last.controller
        told = utc_now() - saved.at if last is None else last.age
        facts["told_s"] = round(told.total_seconds(), 3)
        facts["requests"] = [
            {
                "kind": each.kind,
                "reason": each.reason,
                "at": each.at.isoformat(),
                "taken_in": number <= record.requests,
            }
            for number, each in enumerate(requests, 1)
        ]
        return facts, record

    def forget(self, push_id: str) -> None:
        """Delete the published status of a push in every region; best effort."""
        for region in open_regions(self.config.regions).values():
            with suppress(RegionUnreachable, RegionFailed), region.home.reached() as store:
                store.delete(status_path(push_id))
