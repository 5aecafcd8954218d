"""Publishers that meet, stop or are late; foreign commits; what is kept and cleaned up."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableResponse, StaticTable, Table
from pyiceberg.table.update import update_table_metadata

from persist.publish.iceberg import IcebergTable
from persist.publish.iceberg.metadata import Json, kept_snapshots
from persist.publish.iceberg.schema import unsupported
from persist.publish.steps import ForeignCommit, NotPublishable, Overtaken
from persist.store import StoreUnavailable, open_store
from tests.drivers.memory_store import MemoryStore
from tests.persist.publish.iceberg.made_up import MadeUpTable
from tests.persist.publish.iceberg.reading import LONG_S, check_all, iceberg, opened, publish_each
from tests.persist.publish.mirrored import MirroredStore
from tests.persist.publish.tables import KINDS, SCHEMA, BuiltTable, appended, evolved, sample


def objects(store: Any) -> dict[str, bytes]:
    return {info.path: store.get(info.path) for info in store.list("ns/t/metadata/")}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_steps_give_the_same_bytes(kind: str) -> None:
    store = MemoryStore()
    built = KINDS[kind](store)
    first = iceberg(store)
    for step in built.steps():
        first.publish([step], retain_s=LONG_S)
    found = objects(store)
    for path in found:
        store.delete(path)
    for step in built.steps():
        iceberg(store).publish([step], retain_s=LONG_S)  # a new publisher each time
    assert objects(store).keys() == found.keys()
    assert objects(store) == found


def test_publishing_again_changes_nothing() -> None:
    store = MemoryStore()
    built = appended(store)
    table = iceberg(store)
    head = table.publish(built.steps(), retain_s=LONG_S)
    before = objects(store)
    assert table.publish(built.steps(), retain_s=LONG_S) == head
    assert iceberg(store).publish(built.steps()[2:], retain_s=LONG_S) == head
    assert iceberg(store).publish([], retain_s=LONG_S) == head
    assert objects(store) == before
    assert head.place == built.steps()[-1].place


def test_of_two_publishers_one_is_overtaken(tmp_path: Path) -> None:
    store = MirroredStore(tmp_path)
    built = appended(store)
    steps = built.steps()
    slow, fast = iceberg(store), iceberg(store)
    assert slow.publish(steps[:1], retain_s=LONG_S) == fast.publish(steps[:1], retain_s=LONG_S)
    fast.publish(steps[1:3], retain_s=LONG_S)
    before = objects(store)
    with pytest.raises(Overtaken):
        slow.publish(steps[1:2], retain_s=LONG_S)
    assert before.items() <= objects(store).items(), "nothing was overwritten"
    assert slow.head() == fast.head()
    head = slow.publish(steps[3:], retain_s=LONG_S)
    check_all(head.location, built)


def test_two_publishers_of_the_same_steps_both_succeed() -> None:
    store = MemoryStore()
    steps = appended(store).steps()
    one, other = iceberg(store), iceberg(store)
    for table in (one, other):
        assert table.head() is None
    assert one.publish(steps, retain_s=LONG_S) == other.publish(steps, retain_s=LONG_S)


def test_steps_that_do_not_follow_the_head_are_refused() -> None:
    store = MemoryStore()
    steps = appended(store).steps()
    table = iceberg(store)
    with pytest.raises(Overtaken):
        table.publish(steps[1:], retain_s=LONG_S)
    table.publish(steps[:1], retain_s=LONG_S)
    with pytest.raises(Overtaken):
        table.publish(steps[2:], retain_s=LONG_S)


class LosingStore(MemoryStore):
    """Loses the answer of each write once, before or after it happened."""

    def __init__(self, done: bool) -> None:
        super().__init__()
        self._done, self._lost = done, set[str]()
        self.loses = False

    def _put(self, path: str, data: Any, *, only_if_absent: bool = False) -> Any:
        loses = self.loses and path not in self._lost
        self._lost.add(path)
        if loses and not self._done:
            raise StoreUnavailable("no answer")
        info = super()._put(path, data, only_if_absent=only_if_absent)
        if loses:
            raise StoreUnavailable("no answer")
        return info


@pytest.mark.parametrize("done", [False, True])
def test_a_lost_answer_is_repeated(done: bool) -> None:
    """Also a test of apache/iceberg 14583 and 17340: a commit whose outcome was unknown."""
    store = LosingStore(done)
    built = KINDS["compacted"](store)
    plain = MemoryStore()
    store.loses = True
    table = iceberg(store)
    for step in built.steps():
        iceberg(plain).publish([step], retain_s=LONG_S)
        for _ in range(9):
            with suppress(StoreUnavailable):
                table.publish([step], retain_s=LONG_S)
                break
            with suppress(StoreUnavailable):
                assert iceberg(store).clean_up(retain_s=LONG_S, grace_s=3600) == 0
    assert objects(store) == objects(plain)


def test_a_creation_after_clean_up_has_passed_does_not_count() -> None:
    store = MemoryStore()
    made = MadeUpTable(store)
    late, fast = iceberg(store), iceberg(store)
    fast.publish([made.last], retain_s=0)
    assert late.head() == fast.head()
    first = made.step(made.files(1))
    rest = (made.step(made.files(1)) for _ in range(110))
    head = publish_each(fast, [first, *rest], retain_s=0)
    assert fast.clean_up(retain_s=0, grace_s=0) > 0
    assert store.exists("ns/t/metadata/v2.metadata.json") is None
    with pytest.raises(Overtaken):
        late.publish([first], retain_s=0)
    assert store.exists("ns/t/metadata/v2.metadata.json") is None
    assert late.head() == head


def test_objects_of_an_interrupted_publication_stay_until_their_version_is_published() -> None:
    """A publisher may use them at any moment, also while another one cleans up."""
    store = AgedStore()
    built = appended(store)
    steps = built.steps()
    iceberg(store).publish(steps[:2], retain_s=LONG_S)
    store.fails_at = ".metadata.json"
    with pytest.raises(StoreUnavailable):
        iceberg(store).publish(steps[2:3], retain_s=LONG_S)
    store.fails_at, store.age = None, timedelta(hours=2)
    assert iceberg(store).clean_up(retain_s=LONG_S, grace_s=3600) == 0
    head = iceberg(store).publish(steps[2:], retain_s=LONG_S)
    assert iceberg(store).clean_up(retain_s=LONG_S, grace_s=3600) == 2, "a manifest and a list"
    assert iceberg(store).head() == head
    assert iceberg(store).clean_up(retain_s=LONG_S, grace_s=3600) == 0


class InterruptedStore(MemoryStore):
    """Lets ``meanwhile`` run once, before the first write to a path with this end."""

    def __init__(self, end: str) -> None:
        super().__init__()
        self._end, self.meanwhile = end, list[Any]()

    def _put(self, path: str, data: Any, *, only_if_absent: bool = False) -> Any:
        if path.endswith(self._end) and self.meanwhile:
            self.meanwhile.pop()()
        return super()._put(path, data, only_if_absent=only_if_absent)


def test_a_slow_publisher_does_not_leave_an_old_hint() -> None:
    store = InterruptedStore("version-hint.text")
    steps = appended(store).steps()
    iceberg(store).publish(steps[:1], retain_s=LONG_S)
    store.meanwhile = [lambda: iceberg(store).publish(steps[2:], retain_s=LONG_S)]
    iceberg(store).publish(steps[1:2], retain_s=LONG_S)
    assert store.get("ns/t/metadata/version-hint.text") == b"3"


class AgedStore(MemoryStore):
    """A store whose clock can be moved, and whose writes of one kind can fail."""

    age = timedelta()
    fails_at: str | None = None

    def now(self) -> Any:
        return super().now() + self.age

    def _put(self, path: str, data: Any, *, only_if_absent: bool = False) -> Any:
        if self.fails_at and path.endswith(self.fails_at):
            raise StoreUnavailable("full")
        return super()._put(path, data, only_if_absent=only_if_absent)


def test_a_commit_of_a_hadoop_table_stops_publishing(tmp_path: Path) -> None:
    store = MirroredStore(tmp_path)
    built = appended(store)
    steps = built.steps()
    table = iceberg(store)
    table.publish(steps[:2], retain_s=LONG_S)
    # As HadoopTableOperations commits: the next number, with the properties of the one before.
    theirs = json.loads(store.get("ns/t/metadata/v1.metadata.json"))
    theirs["last-updated-ms"] += 1
    path = "ns/t/metadata/v2.metadata.json"
    store.create(path, json.dumps(theirs).encode())
    before = objects(store)
    for publisher in (table, iceberg(store)):
        with pytest.raises(ForeignCommit, match=r"v2\.metadata\.json was written by another"):
            publisher.publish(steps[2:3], retain_s=LONG_S)
        with pytest.raises(ForeignCommit, match="move the folder ns/t/metadata elsewhere"):
            publisher.head()
        assert publisher.clean_up(retain_s=0, grace_s=0) == 0
    now = objects(store)
    assert {name: now[name] for name in before} == before


class TheirCatalog(NoopCatalog):
    """A catalogue that commits as pyiceberg's do: a new metadata file under a random name."""

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        metadata = update_table_metadata(table.metadata, updates)
        path = f"{metadata.location}/metadata/00001-{uuid.uuid4()}.metadata.json"
        ToOutputFile.table_metadata(metadata, table.io.new_output(path))
        return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": path})


def test_a_commit_of_pyiceberg_stops_publishing(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    built = appended(store)
    ours = opened(iceberg(store).publish(built.steps(), retain_s=LONG_S).location)
    catalogue = TheirCatalog("theirs")
    table = Table(("ns", "t"), ours.metadata, ours.metadata_location, ours.io, catalogue)
    table.append(table.scan().to_arrow())
    assert table.scan().to_arrow().num_rows == 2 * built.rows().num_rows
    before = objects(store)
    with pytest.raises(ForeignCommit, match=r"00001-.* was written by another writer"):
        iceberg(store).publish(built.steps(), retain_s=LONG_S)
    assert objects(store) == before


def test_metadata_that_cannot_be_read_stops_publishing() -> None:
    for data in (b"", b"{", b"[]", b"{}", b'{"properties": {}}', b"\xff", b"null"):
        store = MemoryStore()
        store.put("ns/t/metadata/v7.metadata.json", data)
        with pytest.raises(ForeignCommit, match=r"v7\.metadata\.json is not readable"):
            iceberg(store).head()


def test_metadata_of_a_moved_store_stops_publishing() -> None:
    """Also a test of fluss 3483: metadata that names a stale path."""
    store = MemoryStore()
    iceberg(store).publish(appended(store).steps(), retain_s=LONG_S)
    store.url = "memory://elsewhere"
    with pytest.raises(ForeignCommit, match="names files below memory://tests/ns/t"):
        iceberg(store).head()


def test_a_lost_manifest_list_stops_publishing() -> None:
    store = MemoryStore()
    iceberg(store).publish(appended(store).steps(), retain_s=LONG_S)
    [path] = (path for path in objects(store) if "/snap-" in path)
    store.delete(path)
    with pytest.raises(ForeignCommit, match=r"snap-.*avro is missing"):
        iceberg(store).head()


def test_a_table_is_published_again_after_its_metadata_was_moved_away(tmp_path: Path) -> None:
    store = MirroredStore(tmp_path)
    built = appended(store)
    table = iceberg(store)
    table.publish(built.steps(), retain_s=LONG_S)
    for path in objects(store):
        store.delete(path)
    assert table.head() is None
    last = built.steps()[-1]
    again = replace(last, added=tuple(last.files()), removed=(), complete=True)
    head = table.publish([again], retain_s=LONG_S)
    assert check_all(head.location, built) == [last.place.number]


def test_the_hint_is_mended() -> None:
    store = MemoryStore()
    steps = appended(store).steps()
    iceberg(store).publish(steps[:1], retain_s=LONG_S)
    iceberg(store).publish(steps[1:], retain_s=LONG_S)
    for mend in ("publish", "clean_up"):
        store.put("ns/t/metadata/version-hint.text", b"1")
        table = iceberg(store)
        if mend == "publish":
            table.publish([], retain_s=LONG_S)
        else:
            table.clean_up(retain_s=LONG_S, grace_s=3600)
        assert store.get("ns/t/metadata/version-hint.text") == b"2"


def test_clean_up_leaves_what_snapshots_need_and_what_is_not_ours(tmp_path: Path) -> None:
    store = MirroredStore(tmp_path)
    built = BuiltTable(store, SCHEMA, ["identity(ok)"])
    table = iceberg(store)
    foreign = "ns/t/metadata/0a-m0.avro"
    store.put(foreign, b"DuckDB")
    for step in built.steps():
        table.publish([step], retain_s=LONG_S)
    for first in range(110):
        built.append(sample(first, 1))
    head = publish_each(table, built.steps(1), retain_s=0.0)
    before = objects(store)
    assert table.clean_up(retain_s=0.0, grace_s=3600) == 10, "only metadata files"
    deleted = table.clean_up(retain_s=0.0, grace_s=0)
    assert deleted > 150
    left = objects(store)
    assert len(left) == len(before) - 10 - deleted
    assert left[foreign] == b"DuckDB"
    numbers = [path for path in left if path.endswith(".metadata.json")]
    assert len(numbers) == 101
    assert check_all(head.location, built) == [111]
    log = opened(head.location).metadata.metadata_log
    assert {each.metadata_file for each in log} == {f"{store.url}/{path}" for path in numbers} - {
        head.location
    }
    assert table.clean_up(retain_s=0.0, grace_s=0) == 0


def snapshots(times: list[int]) -> list[Json]:
    return [{"snapshot-id": n, "timestamp-ms": at} for n, at in enumerate(times)]


@given(st.lists(st.integers(0, 500), max_size=400), st.integers(0, 100))
def test_kept_snapshots_are_new_or_spread_over_the_retention(
    gaps: list[int], retain_s: float
) -> None:
    times = [10**12]
    kept: list[Json] = snapshots(times)
    for gap in gaps:
        times.append(times[-1] + gap)
        kept = kept_snapshots([*kept, snapshots(times)[-1]], retain_s)
    now, oldest = times[-1], times[-1] - retain_s * 1000
    ids = [each["snapshot-id"] for each in kept]
    assert ids == sorted(set(ids))
    assert ids[-1] == len(times) - 1
    assert len(kept) <= 202
    newest = range(max(0, len(times) - 100), len(times) - 1)
    for number in newest:
        assert (number in ids) == (times[number + 1] > oldest)
    for number in set(ids) - set(newest) - {len(times) - 1}:
        assert times[number] > oldest, "its files may be deleted"
    covered = [at for at in times[:-100] if at > oldest]
    width = retain_s * 10
    for at in covered:
        assert any(abs(each["timestamp-ms"] - at) <= width for each in kept), (at, now)


def test_snapshots_that_are_dropped_are_nowhere_named() -> None:
    """A test of paimon 6120: refs to snapshots that are not listed."""
    store = MemoryStore()
    made, table = MadeUpTable(store), iceberg(store)
    table.publish([made.last], retain_s=10)
    for _ in range(300):
        table.publish([made.step(made.files(1), ms=50)], retain_s=10)
    found = table.newest_metadata()
    assert found is not None
    content = json.loads(found[1])
    ids = {each["snapshot-id"] for each in content["snapshots"]}
    assert 100 < len(ids) < 220
    assert {each["snapshot-id"] for each in content["snapshot-log"]} == ids
    assert content["refs"] == {"main": {"snapshot-id": 301, "type": "branch"}}
    assert {each["schema-id"] for each in content["snapshots"]} == {
        each["schema-id"] for each in content["schemas"]
    }


def test_schemas_of_kept_snapshots_and_all_partition_fields_are_kept(tmp_path: Path) -> None:
    store = MirroredStore(tmp_path)
    built = evolved(store)
    head = publish_each(iceberg(store), built.steps())
    metadata = opened(head.location).metadata
    assert sorted(each.schema_id for each in metadata.schemas) == [1, 2, 3]
    specs = {
        each.spec_id: [(field.name, field.field_id) for field in each.fields]
        for each in metadata.partition_specs
    }
    assert specs == {
        1: [("time_day", 1000)],
        2: [("host_bucket", 1001), ("time_day", 1000)],
        3: [],
    }
    assert (metadata.last_partition_id, metadata.default_spec_id) == (1001, 3)
    by_name = {f.name: f.field_id for f in metadata.schemas[-1].fields}
    for schema in metadata.schemas:
        assert {f.name: f.field_id for f in schema.fields}.items() <= by_name.items()


def test_columns_without_a_counterpart_are_refused_by_name() -> None:
    schema = pa.schema(
        [
            ("u", pa.uint32()),
            ("deep", pa.list_(pa.struct([("x", pa.map_(pa.string(), pa.uint64()))]))),
            ("t", pa.timestamp("ns", "UTC")),
            ("nothing", pa.null()),
            ("s", pa.struct([("v", pa.int64())])),
            ("s.v", pa.int64()),
            ("fine", pa.int8()),
        ]
    )
    told = unsupported(BuiltTable.definition_of(schema))
    assert [text.split("'")[1] for text in told] == ["u", "deep", "t", "nothing", "s.v"]
    assert "has type uint32, which Iceberg lacks: use int64" in told[0]
    assert "uint64 inside list<item: struct" in told[1]
    assert "timestamp_unit 'us'" in told[2]
    assert unsupported(BuiltTable.definition_of(SCHEMA)) == ()


def test_versions_before_a_column_without_a_counterpart_are_published() -> None:
    store = MemoryStore()
    built = appended(store)
    number = built.state.version
    built.add_columns(pa.field("u", pa.uint8()))
    table = iceberg(store)
    with pytest.raises(NotPublishable, match="column 'u' has type uint8"):
        table.publish(built.steps(), retain_s=LONG_S)
    head = table.head()
    assert head is not None
    assert head.place.number == number
    with pytest.raises(NotPublishable, match="column 'u' has type uint8"):
        table.publish(built.steps(number), retain_s=LONG_S)


def test_programs_that_expire_or_purge_are_told_to_leave_the_files_alone(tmp_path: Path) -> None:
    table = appended(open_store(f"file://{tmp_path}"))
    IcebergTable(table.store, "ns", "t").publish(table.steps(), retain_s=86_400.0)
    # Iceberg refuses to expire snapshots, delete orphans and purge if this is set.
    assert StaticTable.from_metadata(f"{tmp_path}/ns/t").properties["gc.enabled"] == "false"
