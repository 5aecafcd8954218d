"""Registration in existing catalogues: AWS Glue (moto), by pyiceberg's own classes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from persist.publish.format import Head
from persist.publish.iceberg import IcebergTable
from persist.publish.registration import (
    FOLDER,
    KEPT_FILES,
    CatalogUnavailable,
    NotRegistered,
    Registration,
)
from persist.store import ObjectStore, open_store
from tests.drivers.glue_server import glue_options, glue_server
from tests.drivers.s3_server import S3Server
from tests.persist.publish.tables import SCHEMA, BuiltTable, sample

NAMES = (f"t{number}" for number in count())
BUCKET = "registered"
pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """A server of S3 and Glue, with a bucket."""
    with S3Server.start() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="module")
def options(server: S3Server) -> Iterator[dict[str, Any]]:
    """The options of a catalogue, which also reach the store."""
    with glue_server() as url:
        yield {
            **glue_options(url),
            "client.access-key-id": server.access_key,
            "client.secret-access-key": server.secret_key,
            "name": "shared",
            "s3": {"endpoint": server.url},
            # The test server takes no uploads without a length, as pyarrow sends them.
            "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
        }


@pytest.fixture(scope="module")
def store(server: S3Server) -> ObjectStore:
    """The ingester's store."""
    return open_store(f"s3://{BUCKET}/lake", **server.storage_options)


@pytest.fixture
def catalog(options: dict[str, Any]) -> Catalog:
    """The catalogue as another program sees it."""
    return load_catalog(**options, **{"s3.endpoint": options["s3"]["endpoint"]})


class Registered:
    """A table that is published and registered after each change."""

    def __init__(self, store: ObjectStore, registration: Registration, table: BuiltTable) -> None:
        self.built, self.name = table, f"ns.{table.table}"
        self._iceberg = IcebergTable(store, "ns", table.table)
        self._registration = registration
        self._number = 0

    def publish(self, retain_s: float = 3600) -> Head:
        """Publish what is new, without registering it."""
        steps = self.built.steps(self._number)
        if steps:
            self._number = steps[-1].place.number
            self._iceberg.publish(steps, retain_s=retain_s)
        found = self._iceberg.newest_metadata()
        assert found is not None
        return found[0]

    def register(self) -> None:
        """Register the newest metadata."""
        found = self._iceberg.newest_metadata()
        assert found is not None
        head, metadata = found
        self._registration.register("ns", self.built.table, head.location, metadata)

    def update(self, retain_s: float = 3600) -> None:
        """Publish and register."""
        self.publish(retain_s)
        self.register()


@pytest.fixture
def table(store: ObjectStore, options: dict[str, Any]) -> Registered:
    """A published table with two versions, not registered yet."""
    built = BuiltTable(store, pa.schema(list(SCHEMA)[:4]), ["identity(day)"], table=next(NAMES))
    built.append(sample(0, 4, built.definition.schema))
    made = Registered(store, Registration(options), built)
    made.publish()
    return made


def rows(table: Table) -> Any:
    """The rows that an engine reads, in order of ``n``."""
    return table.scan().to_arrow().sort_by("n").to_pylist()


def expected(table: Registered) -> Any:
    """The rows of the table's files."""
    return table.built.rows().sort_by("n").to_pylist()


def test_a_table_is_registered_and_follows_each_version(
    catalog: Catalog, table: Registered
) -> None:
    table.register()
    assert rows(catalog.load_table(table.name)) == expected(table)
    table.built.append(sample(4, 4, table.built.definition.schema))
    table.built.add_columns(*list(SCHEMA)[4:6])
    table.built.add_columns(*list(SCHEMA)[6:8])
    table.built.partition_by("identity(ok)")
    table.built.append(sample(8, 4, table.built.definition.schema))
    table.update()
    found = catalog.load_table(table.name)
    assert rows(found) == expected(table)
    current = found.current_snapshot()
    assert current is not None
    assert current.snapshot_id == table.publish().place.number
    assert len(found.spec().fields) == 1
    table.built.compact()
    table.update()
    assert rows(catalog.load_table(table.name)) == expected(table)


def test_what_is_registered_already_changes_nothing(catalog: Catalog, table: Registered) -> None:
    table.register()
    older = IcebergTable(table.built.store, "ns", table.built.table).newest_metadata()
    table.built.append(sample(4, 4, table.built.definition.schema))
    table.update()
    before = catalog.load_table(table.name).metadata_location
    table.register()
    assert older is not None
    table._registration.register("ns", table.built.table, older[0].location, older[1])
    assert catalog.load_table(table.name).metadata_location == before


def test_a_snapshot_that_is_no_longer_published_leaves_the_catalogue(
    catalog: Catalog, table: Registered
) -> None:
    table.register()
    for first in (4, 8, 12):
        table.built.append(sample(first, 4, table.built.definition.schema))
        table.update(retain_s=0)
    found = catalog.load_table(table.name)
    assert [each.snapshot_id for each in found.snapshots()] == [table.publish().place.number]
    assert rows(found) == expected(table)


def test_a_snapshot_of_another_program_stops_registration_and_stays(
    catalog: Catalog, table: Registered
) -> None:
    table.register()
    catalog.load_table(table.name).append(table.built.rows())
    foreign = catalog.load_table(table.name)
    table.built.append(sample(4, 4, table.built.definition.schema))
    with pytest.raises(NotRegistered, match=f"snapshot .* of table {table.name} .* not the inge"):
        table.update()
    assert catalog.load_table(table.name).metadata == foreign.metadata


def test_another_table_of_the_same_name_stops_registration_and_stays(
    catalog: Catalog, table: Registered
) -> None:
    catalog.create_namespace_if_not_exists("ns")
    schema = Schema(NestedField(1, "other", LongType()))
    made = catalog.create_table(table.name, schema, location=f"s3://{BUCKET}/{uuid.uuid4().hex}")
    with pytest.raises(NotRegistered, match="another table"):
        table.register()
    assert catalog.load_table(table.name).metadata == made.metadata


def test_files_of_the_catalogue_stay_apart_and_few(
    store: ObjectStore, catalog: Catalog, table: Registered
) -> None:
    for first in range(KEPT_FILES + 3):
        table.built.append(sample(first, 1, table.built.definition.schema))
        table.update()
    folder = f"ns/{table.built.table}"
    listed = [info.path for info in store.list(f"{folder}/{FOLDER}/")]
    assert 1 < len(listed) <= KEPT_FILES + 1
    assert all(
        "/v" in i.path or ".avro" in i.path or "hint" in i.path
        for i in store.list(f"{folder}/metadata/")
    )
    assert rows(catalog.load_table(table.name)) == expected(table)
    IcebergTable(store, "ns", table.built.table).clean_up(retain_s=3600, grace_s=0)
    assert rows(catalog.load_table(table.name)) == expected(table)


def test_two_daemons_may_register_one_table(
    options: dict[str, Any], catalog: Catalog, table: Registered
) -> None:
    table.register()
    second = Registered(table.built.store, Registration(options), table.built)
    for first in (4, 8):
        table.built.append(sample(first, 4, table.built.definition.schema))
        table.publish()
        second.register()
        table.register()
    assert rows(catalog.load_table(table.name)) == expected(table)


def test_a_catalogue_that_does_not_answer_is_a_failure_to_repeat(table: Registered) -> None:
    away = Registration({"type": "rest", "uri": "http://127.0.0.1:9"})
    head = table.publish()
    with pytest.raises(CatalogUnavailable, match=f"ns/{table.built.table} is not up to date"):
        away.register("ns", table.built.table, head.location, json.dumps({}).encode())
