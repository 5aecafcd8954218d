"""Real regions that are unreachable, damaged, of another schema, or paused during a switch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from ingester.pushes.config import RegionSettings
from ingester.pushes.record import PushPlan, PushRecord
from ingester.pushes.regions.region import StoreRegion
from ingester.pushes.regions.shapes import ShapeClash, new_definition, with_schema
from ingester.pushes.regions.store import RegionDaemons, RegionStore
from ingester.pushes.regions.tables import plan_for, tables_of
from ingester.pushes.states import RegionStage, Status
from ingester.pushes.store import HeldPush
from ingester.pushes.tasks import RegionFailed, RegionUnreachable, Rules
from persist.manifest import Manifest, Proposal, commit, current_version, list_versions
from persist.store import ObjectStore, PutInfo
from persist.table import TableDefinition
from tests.drivers.memory_store import MemoryStore
from tests.drivers.pushing import PUSHER, PausingStore, write_rows
from tests.drivers.waiting import until
from tests.pushes.realm import TABLE, Job, Realm, copied, in_folders, in_stores, some_rows

OLD, NEW = some_rows(0, 30), some_rows(100, 50)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("what", "ends", "statuses"),
    [
        ("wait", Status.SERVING, "SERVING SERVING SERVING"),
        ("skip", Status.FAILED, "SERVING FAILED SERVING"),
        ("abort", Status.FAILED, "SERVING FAILED ABORTED"),
        ("rollback", Status.ROLLED_BACK, "ROLLED_BACK FAILED ABORTED"),
    ],
)
def test_a_region_whose_folder_is_gone_is_handled_as_configured(
    tmp_path: Path,
    what: Literal["wait", "skip", "abort", "rollback"],
    ends: Status,
    statuses: str,
) -> None:
    realm = in_folders(tmp_path, "abc")
    realm.push(OLD, "p0")
    realm.rules = Rules(on_unreachable=what, unreachable_after=HOUR)
    held, job = realm.begin(NEW), Job(realm, NEW)
    away, began = tmp_path / "elsewhere", realm.now

    def hear(record: PushRecord) -> None:
        job.hear(record)
        if not away.exists() and record.region("a").status is Status.SERVING:
            (tmp_path / "b").rename(away)

    def look(record: PushRecord) -> bool:
        if what == "wait" and away.is_dir() and realm.now > began + 2 * HOUR:
            away.rename(tmp_path / "b")
            (tmp_path / "elsewhere").touch()
        return False

    record = realm.step(held, hear, look)
    assert record.status is ends
    assert [each.status.value for each in record.regions] == statuses.split()
    assert realm.now >= began + HOUR
    if what != "wait":
        assert not (tmp_path / "b").exists(), "nobody writes where a store was not mounted"
        away.rename(tmp_path / "b")
    live = {"SERVING": (3, 50)}
    assert realm.states() == [live.get(each, (2, 30)) for each in statuses.split()]


def test_a_folder_that_cannot_be_looked_at_is_a_region_that_is_away(tmp_path: Path) -> None:
    """For example, a file server fails: even the check for the folder's existence is an error."""
    cannot = RegionSettings(name="b", url=f"file://{tmp_path}/{'x' * 300}")
    region = RegionStore.open(cannot)
    with (
        pytest.raises(RegionUnreachable, match=r"its store does not exist: .*x: .*too long"),
        region.reached(),
    ):
        pass
    assert tables_of([region], *TABLE) == {}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.unlink(), r"file data/\w+\.parquet is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"has \d+ bytes instead of"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-20] + bytes(12) + b"\x20\0\0\0PAR1"),
            r"the footer of file \S+ has the checksum",
        ),
    ],
)
def test_a_damaged_file_is_fetched_again_or_fails_its_region_before_anything_is_live(
    tmp_path: Path, damage: Callable[[Path], object], says: str
) -> None:
    realm = in_folders(tmp_path, "ab")
    realm.push(OLD, "p0")
    held, path = _damaged_in(realm, tmp_path, "b", damage)
    assert realm.step(*held).status is Status.SERVING
    assert realm.states() == [(3, 50)] * 2
    assert (tmp_path / "b" / path[0]).read_bytes() == (tmp_path / "a" / path[0]).read_bytes()

    held, _ = _damaged_in(realm, tmp_path, "ab", damage, "p2")
    record = realm.step(*held)
    failed = [each for each in record.regions if each.status is Status.FAILED]
    assert record.status is Status.FAILED
    assert failed != []
    assert all(re.search(says, each.reason) for each in failed)
    assert realm.states() == [(3, 50)] * 2
    for region in realm.regions.values():
        kept = [each.version for each in list_versions(region.home.store, *TABLE) if each.kept]
        assert kept == [1, 2, 3], "what is not live is given up, also where the push has failed"


Held = tuple[HeldPush, Callable[[PushRecord], None]]


def _damaged_in(
    realm: Realm,
    path: Path,
    names: str,
    damage: Callable[[Path], object],
    push_id: str = "p1",
) -> tuple[Held, list[str]]:
    """Begin a push whose first file is damaged in some regions; return it with the file's path."""
    job, damaged = Job(realm, NEW), list[str]()

    def hear(record: PushRecord) -> None:
        if damaged:
            return
        job.hear(record)
        if job.files:
            version = record.region("a").table_version
            damaged.append(f"shop/visits/v{version}/{job.files[0].path}")
            for name in names:
                damage(path / name / damaged[0])

    return (realm.begin(NEW, push_id), hear), damaged


def test_a_region_with_a_damaged_file_waits_for_the_one_that_may_have_it(tmp_path: Path) -> None:
    realm = in_folders(tmp_path, "abc")
    record = realm.step(realm.begin(NEW), lambda record: None, _all_made)
    a, b, _ = realm.regions.values()
    files = write_rows([a, b], record, NEW)
    a.commit_data(record, files)
    lost = tmp_path / "a" / "shop" / "visits" / "v2" / files[0].path
    lost.unlink()
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    with pytest.raises(
        RegionUnreachable,
        match="and a region that may have it is unreachable: region b",
    ):
        a.written(record)
    (tmp_path / "elsewhere").rename(tmp_path / "b")
    until(lambda: a.written(record), "it is fetched from b, which has not listed it yet")
    other = tmp_path / "b" / "shop" / "visits" / "v2" / files[0].path
    assert lost.read_bytes() == other.read_bytes()


def test_a_store_that_damages_what_it_is_given_is_given_it_once_more_and_no_more() -> None:
    bad = DamagingStore()
    realm = in_stores({"a": MemoryStore(), "b": bad})
    record = realm.step(realm.begin(NEW), lambda record: None, _all_made)
    regions = list(realm.regions.values())
    files = write_rows(regions, record, NEW)
    bad.damaged = f"shop/visits/v2/{files[0].path}"
    bad.put(bad.damaged, bad.get(bad.damaged))
    for region in regions:
        region.commit_data(record, files)
    assert not regions[1].written(record)
    with pytest.raises(RegionFailed, match="has the checksum"):
        regions[1].written(record)


class DamagingStore(MemoryStore):
    """A store that changes the footer of one file on write."""

    damaged = ""

    def put(self, path: str, data: Any) -> PutInfo:
        data = bytes(data)
        if path == self.damaged:
            data = data[:-20] + bytes(12) + data[-8:-4] + b"PAR1"
        return super().put(path, data)


def test_data_comes_from_a_region_that_has_it_whole(tmp_path: Path) -> None:
    """The first region that claims to have the data has lost a file: the other one is asked."""
    realm = in_folders(tmp_path, "abc")
    record = realm.step(realm.begin(NEW), lambda record: None, _all_made)
    a, b, c = realm.regions.values()
    files = write_rows([a, b], record, NEW)
    c.slice_s = 0.0
    assert not c.written(record)
    a.commit_data(record, files)
    (tmp_path / "a" / "shop" / "visits" / "v2" / files[0].path).unlink()
    assert not c.written(record), "nobody has it whole"
    b.commit_data(record, files)
    assert not c.written(record), "there was no time for it"
    c.slice_s = 20.0
    c._data.clear()
    assert c.written(record)
    until(lambda: a.written(record), "what it has lost comes from another one")
    b.commit_data(record, files[:1])
    assert Manifest(b.home.store, *TABLE, 2).load().rows == 50, "listed once"


def _all_made(record: PushRecord) -> bool:
    return all(each.table_version for each in record.regions)


def table(**shape: object) -> TableDefinition:
    """Return a table as another program made it in a region."""
    columns = {"n": pa.int64(), "s": pa.string()} | shape.pop("columns", {})  # type: ignore[operator]
    plan = with_schema(PushPlan(**shape), pa.schema(list(columns.items())))  # type: ignore[arg-type]
    return new_definition(plan)


@pytest.mark.parametrize(
    ("in_b", "says"),
    [
        (
            table(columns={"s": pa.binary()}),
            "regions a and b differ: column 's': string and binary",
        ),
        (table(columns={"X": pa.int64()}), "region b: column 'x' differs from the table's 'X'"),
        (
            table(columns={"x": pa.string()}),
            "region b: column 'x': table has string, push has double",
        ),
        (
            table(columns={"k": pa.int8()}),
            "regions a and b differ: column 'k': int32 and int8",
        ),
        (
            table(partition_by=("bucket(4, n)",)),
            r"of regions a and b differ: partition_by: \[\] and \['bucket",
        ),
        (
            table(sort_by=("s",)),
            r"regions a and b differ: sort_by: \[\] and \['s'\]",
        ),
        (
            table(primary_key=("z",), columns={"z": pa.int64()}),
            r"regions a and b differ: primary_key: \[\] and \['z'\]",
        ),
    ],
)
def test_shapes_that_differ_are_refused_before_anything_is_written(
    in_b: TableDefinition, says: str
) -> None:
    stores: dict[str, ObjectStore] = {name: MemoryStore() for name in "abc"}
    homes = [each.home for each in in_stores(stores).regions.values()]
    for name, definition in (("a", table(columns={"k": pa.int32()})), ("b", in_b)):
        commit(Manifest(stores[name], *TABLE, 1), None, Proposal(definition.actions()), PUSHER)
    before = [[info.path for info in store.list("")] for store in stores.values()]
    plan = with_schema(PushPlan(), pa.schema([*NEW.schema, pa.field("x", pa.float64())]))
    with pytest.raises(ShapeClash, match=says):
        plan_for(tables_of(homes, *TABLE), plan)
    assert before == [[info.path for info in store.list("")] for store in stores.values()]


def test_a_table_is_made_alike_where_there_is_none_and_columns_are_added_everywhere() -> None:
    stores: dict[str, ObjectStore] = {name: MemoryStore() for name in "abc"}
    realm = in_stores(stores)
    made = table(columns={"k": pa.int32(), "t": pa.timestamp("ns")}, sort_by=("s",))
    commit(Manifest(stores["b"], *TABLE, 1), None, Proposal(made.actions()), PUSHER)
    record = realm.step(realm.begin(NEW), Job(realm, NEW).hear)
    assert record.status is Status.SERVING
    there = [region.definition(record) for region in realm.regions.values()]
    assert {each.schema.names == ["n", "s", "k", "t"] for each in there} == {True}
    assert {(each.spec.texts(), each.sort_by, each.timestamp_unit) for each in there} == {
        ((), ("s",), "ns")
    }
    compared = realm.regions["a"].statistics(record)
    assert compared is not None
    assert compared.new.nulls == {"n": 0, "s": 0, "k": 50, "t": 50}


def paused(
    until: Callable[[PushRecord], bool],
    call: Callable[[StoreRegion, PushRecord], object],
    give_up: Callable[[StoreRegion, PushRecord], bool],
) -> Iterator[tuple[StoreRegion, PushRecord, bool, bool]]:
    """Pause the push's next call at each of its own calls of the store, and end the push meanwhile.

    Yields whether the call took effect and what the end returned.
    """
    store = MemoryStore()
    realm = in_stores({"a": store})
    record = realm.step(realm.begin(NEW), Job(realm, NEW).hear, until)
    for at in count(1):
        (region,) = in_stores({"a": copied(store)}).regions.values()
        said: list[bool] = []

        def meanwhile(region: StoreRegion = region, said: list[bool] = said) -> None:
            said.append(give_up(region, record))

        pausing = PausingStore(region.home.store, at, meanwhile)
        slow = StoreRegion(RegionStore("a", pausing), RegionDaemons(()))
        done = _does(partial(call, slow), record)
        if not said:
            return
        assert give_up(region, record) is said[0], "it is told the same once more"
        yield region, record, done, said[0]


@pytest.mark.parametrize("way", [StoreRegion.roll_back, StoreRegion.discard])
def test_no_swap_takes_effect_after_its_push_was_given_up(
    way: Callable[[StoreRegion, PushRecord], bool],
) -> None:
    told = set()
    for region, record, swapped, said in paused(_in_turn, StoreRegion.swap, way):
        counts = current_version(region.home.store, *TABLE) == 2
        assert counts is (way is StoreRegion.discard and not said)
        assert swapped or not counts
        assert _does(region.swap, record) is counts
        told.add(said)
    assert told == {True, False}, "paused before its seal, and behind it"


def test_no_version_is_made_after_its_push_was_given_up() -> None:
    made = set()
    for region, record, done, said in paused(
        _is_begun, StoreRegion.create_version, StoreRegion.discard
    ):
        assert said
        assert [each.version for each in list_versions(region.home.store, *TABLE) if each.kept] == [
            1
        ]
        assert not _does(region.create_version, record)
        assert not _does(region.swap, record)
        made.add(done)
    assert made == {True, False}


def _does(call: Callable[[PushRecord], object], push: PushRecord) -> bool:
    try:
        call(push)
    except RegionFailed:
        return False
    return True


def _in_turn(record: PushRecord) -> bool:
    return record.regions[0].swap_number > 0


def _is_begun(record: PushRecord) -> bool:
    return record.regions[0].stage is RegionStage.CREATE


def test_what_was_given_up_before_it_was_made_is_never_made() -> None:
    realm = in_stores({"a": MemoryStore()})
    record, region = realm.begin(NEW).record, realm.regions["a"]
    assert region.discard(record)
    for call in (region.create_version, region.swap, lambda push: region.commit_data(push, [])):
        with pytest.raises(RegionFailed, match="generation 2 was given up: push p1 was given up"):
            call(record)
    assert not region.roll_back(record)
    assert region.statistics(record) is None
    assert realm.state("a") is None


def test_the_version_of_a_push_that_counts_no_more_stays_for_the_way_back_of_a_later_one() -> None:
    store = MemoryStore()
    realm = in_stores({"a": store})
    first, second = realm.push(OLD, "p1"), realm.push(NEW, "p2")
    region = realm.regions["a"]
    with pytest.raises(RegionFailed, match="by generation 3 of push p2: roll that one back"):
        region.roll_back(first)
    assert region.discard(first)
    assert current_version(store, *TABLE) == 3
    assert [each.kept for each in list_versions(store, *TABLE)] == [True] * 3
    assert region.roll_back(second)
    assert current_version(store, *TABLE) == 2
    with pytest.raises(RegionFailed, match="rolled back"):
        region.swap(second)


def test_a_push_is_not_said_to_be_rolled_back_while_its_version_may_count_again() -> None:
    realm = in_stores({"a": MemoryStore(), "b": MemoryStore()})
    for push_id, rows in (("good", OLD), ("bad", NEW), ("worse", NEW)):
        realm.push(rows, push_id)

    def rolled_back(push_id: str) -> PushRecord:
        realm.pushes.request(push_id, "rollback", "it is bad", realm.now)
        return realm.lead(realm.pushes.take_over(push_id, "c2", realm.now))

    record = rolled_back("bad")
    assert record.status is Status.SERVING
    assert "generation 4 of push worse: roll that one back first" in record.history[-1].what
    assert realm.states() == [(4, len(NEW))] * 2
    assert rolled_back("worse").status is Status.ROLLED_BACK
    assert realm.states() == [(3, len(NEW))] * 2, "the bad one is live again"
    assert rolled_back("bad").status is Status.ROLLED_BACK
    assert realm.states() == [(2, len(OLD))] * 2


def test_a_configuration_with_another_store_for_a_region_undoes_nothing_in_its_name() -> None:
    here = in_stores({"a": MemoryStore(), "b": MemoryStore()})
    here.push(OLD, "good")
    record = here.push(NEW, "bad")
    stores = {name: region.home.store for name, region in here.regions.items()}

    def rolled_back(realm: Realm) -> PushRecord:
        realm.pushes.request("bad", "rollback", "it is bad", realm.now)
        held = realm.pushes.take_over("bad", "c2", realm.now)
        return realm.step(held, lambda record: None)

    mistaken = in_stores(stores | {"b": MemoryStore()})
    assert mistaken.pushes.newest("bad").record == record
    failed = rolled_back(mistaken)
    assert [each.status for each in failed.regions] == [Status.ROLLED_BACK, Status.FAILED]
    assert (
        "no generation 3 of push bad: it is not the store that region" in failed.region("b").reason
    )
    assert mistaken.states() == [(2, len(OLD)), None]
    assert here.states() == [(2, len(OLD)), (3, len(NEW))], "the bad one is live in b"
    assert rolled_back(here).status is Status.ROLLED_BACK
    assert here.states() == [(2, len(OLD))] * 2


class IgnoresConditions(MemoryStore):
    """A server that accepts If-None-Match but ignores it."""

    def create(self, path: str, data: Any) -> PutInfo:
        return self.put(path, data)


def test_a_store_in_which_two_pushes_could_own_one_version_is_refused_before_it_is_filled() -> None:
    unsafe = IgnoresConditions()
    realm = in_stores({"a": MemoryStore(), "b": unsafe})
    record = realm.push(OLD)
    assert record.status is Status.FAILED
    assert "ignores the condition of a conditional create" in record.region("b").reason
    assert realm.states() == [(1, 0), None]
    assert {info.path.split("/")[0] for info in unsafe.list("")} <= {"_push_status"}
    held = in_stores({"a": unsafe}).push(OLD)
    assert held.status is Status.FAILED
    assert held.ending is not None
    assert "ignores the condition" in held.ending.reason
