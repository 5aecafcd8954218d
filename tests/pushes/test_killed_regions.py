"""The leader of a push through real stores is killed at each change of any store.

The job that writes the rows is killed too, and submitted again under the same id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ingester.pushes.hooks import PROCEED, Answer, HookContext, abort, rollback
from ingester.pushes.record import PushRecord
from ingester.pushes.store import HeldPush
from persist.manifest import Manifest, list_versions, switches
from persist.store import ObjectStore, PutInfo
from tests.drivers.memory_store import MemoryStore
from tests.persist.manifest.stores import FaultyStore
from tests.pushes.realm import TABLE, Job, Realm, copied, in_stores, some_rows
from tests.pushes.world import Killed

OLD, NEW = some_rows(0, 30), some_rows(100, 50)
Script = Callable[[HookContext], Answer]


class Moments:
    """Counts the moments after each change; at one of them the process may end.

    The moment before a change is the one after the previous change.
    """

    def __init__(self) -> None:
        self.count = 0
        self.kill_at = -1
        self.look: Callable[[], None] = lambda: None

    def pass_by(self) -> None:
        self.count += 1
        self.look()
        if self.count == self.kill_at:
            raise Killed


class MomentStore(FaultyStore):
    """A store with a moment after each change."""

    def __init__(self, inner: ObjectStore, moments: Moments) -> None:
        super().__init__(inner)
        self._moments = moments

    def open(self, path: str) -> Any:
        return self._inner.open(path)

    def put(self, path: str, data: Any) -> PutInfo:
        put = super().put(path, data)
        self._moments.pass_by()
        return put

    def create(self, path: str, data: Any) -> PutInfo:
        made = super().create(path, data)
        self._moments.pass_by()
        return made


def good(context: HookContext) -> Answer:
    return PROCEED


def undoes(context: HookContext) -> Answer:
    bad = (context.method, context.region) == ("post_version_swap", "c")
    return rollback("bad") if bad else PROCEED


def gives_up(context: HookContext) -> Answer:
    bad = (context.method, context.region) == ("pre_version_swap", "b")
    return abort("bad") if bad else PROCEED


def served(stores: Mapping[str, ObjectStore]) -> list[tuple[int, set[int]]]:
    """Return each region's current version, and the numbers of its files' first rows."""
    found = []
    for store in stores.values():
        state = Manifest(store, *TABLE).load()
        found.append((state.rows, {add.stats["n"].min for add in state.files.values()}))
    return found  # type: ignore[return-value]


@pytest.fixture(scope="module")
def before() -> Mapping[str, ObjectStore]:
    """Three regions that serve the old rows."""
    stores: dict[str, ObjectStore] = {name: MemoryStore() for name in "abc"}
    realm = in_stores(stores)
    realm.step(realm.begin(OLD, "p0"), Job(realm, OLD).hear)
    return stores


class Lives:
    """One push over as many controllers as it needs, over the same stores."""

    def __init__(self, before: Mapping[str, ObjectStore], script: Script, kill_at: int) -> None:
        self.inner = {name: copied(store) for name, store in before.items()}
        self.script = script
        self.moments = Moments()
        self.moments.kill_at = kill_at
        if not kill_at:
            self.moments.look = self._look
        self.stores = {name: MomentStore(each, self.moments) for name, each in self.inner.items()}

    def run(self) -> PushRecord:
        """Lead the push to its end."""
        while True:
            realm = in_stores(self.stores)
            realm.panel.script = lambda hook, context: self.script(context)
            try:
                return realm.step(self._held(realm), Job(realm, NEW).hear)
            except Killed:
                continue

    def _held(self, realm: Realm) -> HeldPush:
        if realm.pushes.numbers("p1"):
            return realm.pushes.take_over("p1", "c2", realm.now)
        return realm.begin(NEW, "p1")

    def _look(self) -> None:
        """A reader of any region sees only the old or the new table."""
        for rows, first in served(self.inner):
            assert (rows, min(first)) in ((30, 0), (50, 100))

    def came_to(self, record: PushRecord) -> tuple[object, ...]:
        """Return the push's result, in its record and in the stores."""
        return (
            record.status,
            [(each.name, each.status) for each in record.regions],
            served(self.inner),
            [
                [(each.switch.table_version, each.switch.why) for each in switches(store, *TABLE)]
                for store in self.inner.values()
            ],
            [
                [(each.version, each.kept) for each in list_versions(store, *TABLE)]
                for store in self.inner.values()
            ],
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "first"),
    # The other scripts equal the first one up to their answer, in the second half.
    [(good, 0.0), (undoes, 0.5), (gives_up, 0.5)],
)
def test_a_push_through_real_stores_ends_as_it_would_have(
    before: Mapping[str, ObjectStore], script: Script, first: float
) -> None:
    lives = Lives(before, script, 0)
    expected = lives.came_to(lives.run())
    moments = lives.moments.count
    assert moments > 60
    for at in range(1 + int(first * moments), moments + 1):
        lives = Lives(before, script, at)
        assert lives.came_to(lives.run()) == expected, f"killed at {at} of {moments}"
