"""Makes and publishes tables: every version that is published, and where engines find them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from persist.manifest import Manifest
from persist.publish.format import FORMATS, FormatName
from persist.publish.publisher import Publisher
from persist.store import ObjectStore
from persist.table import TableDefinition
from tests.drivers.wire import Table
from tests.open_tables.comparing import Version
from tests.open_tables.engines import Place
from tests.open_tables.tables import MAKERS, World
from tests.open_tables.terms import Terms

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Published:
    """A published table."""

    kind: str
    table: Table
    places: Mapping[FormatName, Place]
    versions: tuple[Version, ...]
    filters: tuple[Terms, ...] = field(default=())


def publish(store: ObjectStore, table: Table) -> Version:
    """Publish everything that is committed; return the newest version."""
    told = Publisher(store, *table).publish(FORMATS, retain_s=DAY_S)
    assert [(one.refused, one.error, one.versions_behind) for one in told] == [
        (None, None, 0) for _ in FORMATS
    ], told
    places = {one.head.place for one in told if one.head is not None}
    assert len(places) == 1, f"the formats are at {places}"
    (place,) = places
    state = Manifest(store, *table, place.table_version).load(place.version)
    first = TableDefinition.of_state(state).first_schema_id
    return Version(place.number, place.table_version, place.version, first)


def make(world: World, kind: str, s3: Mapping[str, Any] | None = None) -> Published:
    """Make a table of a kind and publish it after each stage."""
    table = ("open", kind)
    maker, filters = MAKERS[kind]
    versions: dict[int, Version] = {}
    for _ in maker(world, table):
        version = publish(world.store, table)
        versions[version.number] = version
    url = f"{world.store.url}/{table[0]}/{table[1]}"
    places = {each: Place(each, url, s3=dict(s3 or {})) for each in FORMATS}
    return Published(kind, table, places, tuple(versions.values()), tuple(filters))
