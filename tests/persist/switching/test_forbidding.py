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
    return MemoryStore()


def made(store: ObjectStore, number: int) -> Table:
    """A table with a second version that is not current yet."""
    table = ("ns", f"t{number}")
    commit(Manifest(store, *table, 1), None, Proposal([*DEFINITION, *persist(1)]), ME)
    commit(Manifest(store, *table, 2), None, Proposal(DEFINITION), OTHER)
    return table


def counts(store: ObjectStore, table: Table, version: int = 2) -> bool:
    """Whether a version is current. It accepts rows, so no seal is left by the paused process."""
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
    """Version 2 is not current, and no switch to it is possible."""
    assert not counts(store, table)
    with pytest.raises(TableVersionNotKept):
        switch_version(store, *table, 2)
    assert [each.version for each in list_versions(store, *table) if each.kept] == [1]
    assert not forbid_switch(store, *table, 2)


def check_counts(store: ObjectStore, table: Table) -> None:
    """Version 2 is current and works like any other; it can be left and then be forbidden."""
    assert counts(store, table) and forbid_switch(store, *table, 2)
    assert all(each.kept for each in list_versions(store, *table))
    roll_back(store, *table, 2)
    assert not forbid_switch(store, *table, 2)
    check_forbidden(store, table)


def switched(store: Any, table: Table) -> bool:
    """Whether a switch reports success."""
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
    """Tables on which ``work`` was paused at each of its calls, with both results."""
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
    """The result of forbidding: whether version 2 is current."""
    return forbid_switch(store, *table, 2)


def killed_at(at: int, done: bool) -> Callable[[Any, Table], bool]:
    """Forbid the version with a process that is killed at some change, and then with another."""

    def forbidden_again(store: Any, table: Table) -> bool:
        with suppress(Killed):
            forbidden(KillingStore(store, at, done=done), table)
        return forbidden(store, table)

    return forbidden_again


def there_and_back(store: Any, table: Table) -> bool:
    """A switch that is rolled back before any other process looks, if it is possible at all."""
    if switched(store, table):
        roll_back(store, *table, 2)
    return False


def test_no_switch_takes_effect_after_its_version_was_forbidden(store: ObjectStore) -> None:
    """Paused at each call; the forbidding process may be killed at any change, and is repeated."""
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
    # No switch is possible after a valid mark; a switch completed before the mark makes it void.
    for table, it_counts, _ in paused_everywhere(store, forbidden, there_and_back, 1000):
        assert not it_counts
        check_forbidden(store, table)


def test_a_version_of_a_missing_table_can_be_forbidden(store: ObjectStore) -> None:
    assert not forbid_switch(store, "ns", "t0", 2)
    check_forbidden(store, made(store, 0))
