"""deltalake and Polars read each version of published tables, value for value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from persist.publish.delta import DeltaTable
from persist.store import open_store
from tests.drivers.s3_server import S3Server
from tests.persist.publish.delta.reading import (
    NAMES,
    check_read,
    comparable,
    complete,
    log_names,
    publish_all,
    read,
    root_of,
)
from tests.persist.publish.tables import (
    KINDS,
    SCHEMA,
    BuiltTable,
    appended,
    fitted,
    partitioned,
    sample,
    switched,
)


@pytest.mark.parametrize("kind", KINDS)
def test_each_version_of_a_table_is_read_exactly(kind: str, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = KINDS[kind](store)
    publish_all(store, table)
    for step in table.steps():
        wanted = table.rows(step)
        for reader in NAMES:
            check_read(reader, root_of(store), step, wanted)


@pytest.mark.parametrize("spec", ["identity(host)", "identity(wide)", "bucket(3, host)"])
def test_names_of_folders_are_encoded_once_more(spec: str, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = partitioned(store, spec)
    publish_all(store, table)
    last = table.steps()[-1]
    assert any("%" in file.path for file in last.files()) == (spec == "identity(host)")
    for reader in NAMES:
        check_read(reader, root_of(store), last, table.rows(last))


@pytest.mark.parametrize("make", [appended, switched])
def test_an_open_table_follows_each_version(
    make: Callable[..., BuiltTable], tmp_path: Path
) -> None:
    store = open_store(str(tmp_path))
    table, published = make(store), DeltaTable(store, "ns", "t")
    steps = table.steps()
    published.publish(steps[:1], retain_s=0)
    reader = deltalake.DeltaTable(root_of(store))
    for step in steps[1:]:
        published.publish([step], retain_s=0)
        reader.update_incremental()
        assert reader.version() == step.place.number
        found = fitted(pa.table(reader.scan()), step.definition.schema)
        assert comparable(found) == comparable(table.rows(step))


def test_a_table_published_late_begins_at_that_version(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = appended(store)
    last = complete(table.steps()[-1])
    DeltaTable(store, "ns", "t").publish([last], retain_s=0)
    assert log_names(store) == [
        f"{last.place.number:020d}.checkpoint.parquet",
        f"{last.place.number:020d}.json",
        "_last_checkpoint",
    ]
    for reader in NAMES:
        check_read(reader, root_of(store), last, table.rows(last))
        found = fitted(read(reader, root_of(store)), SCHEMA)
        assert comparable(found) == comparable(table.rows())


def test_a_complete_step_replaces_what_was_published(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = appended(store)
    published = publish_all(store, table)
    reader = deltalake.DeltaTable(root_of(store))
    before = len(table.steps())
    table.compact()
    table.append(sample(50))
    last = complete(table.steps()[-1])
    published.publish([last], retain_s=0)
    reader.update_incremental()
    assert comparable(fitted(pa.table(reader.scan()), SCHEMA)) == comparable(table.rows())
    table.append(sample(60))
    published.publish(table.steps(last.place.number), retain_s=0)
    for step in [*table.steps()[:before], last, table.steps()[-1]]:
        for name in NAMES:
            check_read(name, root_of(store), step, table.rows(step))


def test_other_writers_are_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = appended(store)
    publish_all(store, table)
    names = log_names(store)
    other = deltalake.DeltaTable(root_of(store))
    rows = sample(100, 2)
    for write in (
        lambda: deltalake.write_deltalake(other, rows, mode="append"),
        lambda: deltalake.write_deltalake(other, rows, mode="overwrite"),
        lambda: other.delete("n < 3"),
        lambda: other.update({"n": "1"}),
        lambda: other.optimize.compact(),
        lambda: other.restore(2),
    ):
        with pytest.raises(Exception, match=r"ingester\.published"):
            write()
    assert log_names(store) == names


def test_files_and_log_are_safe_from_clean_up_by_others(tmp_path: Path) -> None:
    # deltalake checks no features before it deletes files.
    store = open_store(str(tmp_path))
    table = KINDS["compacted"](store)
    publish_all(store, table)
    objects = [info.path for info in store.list("")]
    other = deltalake.DeltaTable(root_of(store))
    assert other.vacuum(dry_run=False) == []
    assert other.vacuum(dry_run=False, full=True) == []
    other.cleanup_metadata()
    assert [info.path for info in store.list("")] == objects


def test_a_checkpoint_by_another_program_does_no_harm(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = appended(store)
    published = publish_all(store, table)
    deltalake.DeltaTable(root_of(store)).create_checkpoint()
    head = published.head()
    assert head is not None and head.place == table.steps()[-1].place
    table.append(sample(60))
    published.publish(table.steps(head.place.number), retain_s=0)
    for reader in NAMES:
        check_read(reader, root_of(store), table.steps()[-1], table.rows())


@pytest.mark.s3
def test_a_table_is_read_from_s3(s3: S3Server) -> None:
    s3.make_bucket("delta")
    store = open_store("s3://delta/some/prefix", **s3.storage_options)
    table = appended(store)
    head = publish_all(store, table).head()
    assert head is not None and head.location == "s3://delta/some/prefix/ns/t"
    options = {
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_ACCESS_KEY_ID": s3.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.secret_key,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    reader = deltalake.DeltaTable(head.location, storage_options=options)
    found = fitted(pa.table(reader.scan()), SCHEMA)
    assert comparable(found) == comparable(table.rows())
