"""A version is forbidden while a switch to it is paused at each of its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from persist.manifest import (
    Add,
    Manifest,
    Proposal,
    SwitchedMeanwhile,
    SwitchRefused,
    TableVersionNotKept,
    VersionSealed,
    commit,
    list_versions,
)
from persist.store import ObjectStore
from persist.switching import finish_switch, forbid_switch, roll_back, switch_version
from tests.drivers.memory_store import MemoryStore
from tests.drivers.pushing import Killed, KillingStore, PausingStore
from tests.persist.manifest.samples import DEFINITION, ME, OTHER, persist

Table = tuple[str, str]


@pytest.fixture
def store() -> ObjectStore:
    """An empty store."""
    return MemoryStore()


def made(store: ObjectStore, number: int) -> Table:
    """A table with a second version that does not count yet."""
    table = ("ns", f"t{number}")
    commit(Manifest(store, *table, 1), None, Proposal([*DEFINITION, *persist(1)]), ME)
    commit(Manifest(store, *table, 2), None, Proposal(DEFINITION), OTHER)
    return table


def counts(store: ObjectStore, table: Table, version: int = 2) -> bool:
    """Whether a version counts, and takes rows: so no seal is left, whatever was paused."""
    manifest = Manifest(store, *table)
    done = finish_switch(store, *table)
    assert done.table_version == manifest.table_version, "nothing was half done"
    seq = manifest.load().applied_to("me", 1, 1, ("2026-11-21",)) + 1
    file, applied = persist(seq)
    assert isinstance(file, Add)
    store.put(manifest.object_path(file.path), b"rows")
    commit(manifest, None, Proposal([file, applied]), ME)
    return manifest.table_version == version


def check_forbidden(store: ObjectStore, table: Table) -> None:
    """Version 2 counts not, and no switch goes there."""
    assert not counts(store, table)
    with pytest.raises(TableVersionNotKept):
        switch_version(store, *table, 2)
    assert [each.version for each in list_versions(store, *table) if each.kept] == [1]
    assert not forbid_switch(store, *table, 2)


def check_counts(store: ObjectStore, table: Table) -> None:
    """Version 2 counts as any other, can be left, and be forbidden then."""
    assert counts(store, table) and forbid_switch(store, *table, 2)
    assert all(each.kept for each in list_versions(store, *table))
    roll_back(store, *table, 2)
    assert not forbid_switch(store, *table, 2)
    check_forbidden(store, table)


def switched(store: Any, table: Table) -> bool:
    """Whether a switch says that it is done."""
    try:
        switch_version(store, *table, 2, push_id="push")
    except (TableVersionNotKept, SwitchRefused, SwitchedMeanwhile, VersionSealed):
        return False
    return True


def paused_everywhere(
    store: ObjectStore,
    work: Callable[[Any, Table], object],
    meanwhile: Callable[[Any, Table], object],
    first: int,
) -> Iterator[tuple[Table, object, object]]:
    """Tables on which a work was paused at each of its calls; what both said."""
    for at in count():
        table, said = made(store, first + at), list[object]()

        def others(table: Table = table, said: list[object] = said) -> None:
            said.append(meanwhile(store, table))

        pausing = PausingStore(store, at + 1, others)
        done = work(pausing, table)
        if not pausing.paused:
            break
        yield table, done, said[0]


def forbidden(store: Any, table: Table) -> bool:
    """What forbidding says: whether version 2 counts."""
    return forbid_switch(store, *table, 2)


def killed_at(at: int, done: bool) -> Callable[[Any, Table], bool]:
    """To forbid with a process that ends at some change, and then with another."""

    def forbidden_again(store: Any, table: Table) -> bool:
        with suppress(Killed):
            forbidden(KillingStore(store, at, done=done), table)
        return forbidden(store, table)

    return forbidden_again


def there_and_back(store: Any, table: Table) -> bool:
    """A switch that is over before anybody looks again, where there can be one."""
    if switched(store, table):
        roll_back(store, *table, 2)
    return False


def test_no_switch_takes_effect_after_its_version_was_forbidden(store: ObjectStore) -> None:
    """Paused at each call; whoever forbids it may end at any change, and does it again."""
    ways = [forbidden, *(killed_at(at, done) for at in (1, 2, 3) for done in (False, True))]
    for number, way in enumerate(ways):
        seen = set()
        for table, done, it_counts in paused_everywhere(store, switched, way, 1000 * number):
            assert done == it_counts
            (check_counts if it_counts else check_forbidden)(store, table)
            seen.add(it_counts)
        assert seen == {True, False}, "paused before the seal, and behind it"


def test_a_switch_made_while_its_version_is_being_forbidden_is_reported(
    store: ObjectStore,
) -> None:
    seen = set()
    for table, it_counts, done in paused_everywhere(store, forbidden, switched, 0):
        assert done == it_counts
        (check_counts if it_counts else check_forbidden)(store, table)
        seen.add(it_counts)
    assert seen == {True, False}
    # Behind a word that holds, there is no switch; before it, one that is over makes it void.
    for table, it_counts, _ in paused_everywhere(store, forbidden, there_and_back, 1000):
        assert not it_counts
        check_forbidden(store, table)


def test_a_version_of_a_missing_table_can_be_forbidden(store: ObjectStore) -> None:
    assert not forbid_switch(store, "ns", "t0", 2)
    check_forbidden(store, made(store, 0))
