"""A publisher that stops before or after any change of the store, and two of them at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from persist.publish.format import FORMATS
from persist.publish.publisher import FormatStatus, Publisher
from persist.store import ObjectStore, open_store
from tests.drivers.pushing import Killed, KillingStore, PausingStore
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.publish.tables import SCHEMA, BuiltTable, sample

RETAIN_S = 86_400.0
METADATA = ("ns/t/metadata/", "ns/t/_delta_log/")


def publish(store: Any) -> list[FormatStatus]:
    """What a publisher that has just started does."""
    found = Publisher(store, "ns", "t").publish(FORMATS, retain_s=RETAIN_S)
    assert [(one.refused, one.error, one.versions_behind) for one in found] == [(None, None, 0)] * 2
    return found


def first_part(store: ObjectStore) -> BuiltTable:
    table = BuiltTable(store, SCHEMA, ["identity(ok)"])
    table.append(sample(0))
    table.append(sample(8))
    return table


def second_part(table: BuiltTable) -> None:
    table.append(sample(16))
    table.compact()
    table.append(sample(24))
    table.switch(sample(100))
    table.append(sample(108))


def metadata(store: ObjectStore) -> dict[str, bytes]:
    """All published objects of the table but Delta's hint, which readers can do without."""
    found = {info.path: store.get(info.path) for each in METADATA for info in store.list(each)}
    found.pop("ns/t/_delta_log/_last_checkpoint", None)
    return found


def number_of_changes(store: ObjectStore) -> int:
    counting = KillingStore(store, -1, done=True)
    publish(counting)
    return -1 - counting._left


class ReadOnce:
    """A store of tables that nobody changes: what is read of their manifests is remembered.

    Those are most of the requests of a publisher.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._found: dict[tuple[Any, ...], Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("get", "exists", "list"):
            return found

        def read(path: str, *more: Any, **named: Any) -> Any:
            if "/_manifest/" not in path:
                return found(path, *more, **named)
            asked = (name, path, *more, *named.items())
            if asked not in self._found:
                answer = found(path, *more, **named)
                self._found[asked] = list(answer) if name == "list" else answer
            answer = self._found[asked]
            return iter(answer) if name == "list" else answer

        return read


class Stage:
    """What a table's publishers have written before a publication, which can be put back."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.before = {path: store.get(path) for path in self._listed()}

    def _listed(self) -> list[str]:
        return [i.path for each in (*METADATA, "ns/t/_published/") for i in self.store.list(each)]

    def again(self) -> None:
        for path in self._listed():
            if path not in self.before:
                self.store.delete(path)
        for path, data in self.before.items():
            self.store.put(path, data)


@EVERY_STORE
@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
def test_every_cut_ends_in_the_same_metadata(real_store: ObjectStore, later: bool) -> None:
    table = first_part(real_store)
    if later:
        publish(real_store)
        second_part(table)
    store: Any = ReadOnce(real_store)
    stage = Stage(store)
    changes = number_of_changes(store)
    expected = metadata(store)
    assert changes > 4
    for at in range(1, changes + 1):
        for done in (False, True):
            stage.again()
            with pytest.raises(Killed):
                publish(KillingStore(store, at, done=done))
            with suppress(Killed):  # less may be left to do
                publish(KillingStore(store, 1 + at // 2, done=not done))
            publish(store)
            assert metadata(store) == expected, (at, done)


def test_what_was_cut_is_read_as_if_it_was_not(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    table = first_part(store)
    publish(store)
    second_part(table)
    with pytest.raises(Killed):
        publish(KillingStore(store, 3, done=True))
    publish(store)
    assert_read(tmp_path, table)


def assert_read(root: Path, table: BuiltTable) -> None:
    """Other engines read the model's rows, now and at each version that is still listed."""
    folder = f"{root}/ns/t"
    iceberg, delta = StaticTable.from_metadata(folder), DeltaTable(folder)
    snapshots = {snapshot.snapshot_id for snapshot in iceberg.metadata.snapshots}
    assert delta.version() == table.steps()[-1].place.number
    for step in table.steps():
        number, expected = step.place.number, ids(table.rows(step))
        if number in snapshots:
            assert ids(iceberg.scan(snapshot_id=number).to_arrow()) == expected
        if number >= first_delta_version(root):
            assert ids(DeltaTable(folder, version=number).to_pyarrow_table()) == expected


def ids(rows: Any) -> list[int]:
    return sorted(rows.column("n").to_pylist())


def first_delta_version(root: Path) -> int:
    names = [path.name for path in (root / "ns/t/_delta_log").iterdir()]
    return min(int(name[:20]) for name in names if name[:20].isdigit())


def test_a_publisher_that_is_paused_at_any_call_continues_from_anothers_head(
    tmp_path: Path,
) -> None:
    store = open_store(f"file://{tmp_path}")
    table = first_part(store)
    publish(store)
    second_part(table)
    stage, paused = Stage(store), []
    for at in range(2, 80, 9):  # all of them take minutes
        stage.again()

        def meanwhile() -> None:
            publish(store)
            table.append(sample(200))
            publish(store)

        pausing = PausingStore(store, at, meanwhile)
        Publisher(pausing, "ns", "t").publish(FORMATS, retain_s=RETAIN_S)
        paused.append(pausing.paused)
        publish(store)
    assert all(paused)
    assert_read(tmp_path, table)


def test_two_publishers_at_once_leave_one_history(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    table = first_part(store)
    publishers = [Publisher(store, "ns", "t") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for round_ in range(6):
            calls = [pool.submit(one.publish, FORMATS, retain_s=RETAIN_S) for one in publishers]
            table.append(sample(100 + 8 * round_))
            for call in calls:
                assert not any(one.refused or one.error for one in call.result())
    table.compact()
    for one in publishers:
        one.publish(FORMATS, retain_s=RETAIN_S)
    assert_read(tmp_path, table)
