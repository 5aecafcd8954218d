"""The data of a push into the versions of its regions.

    targets_of           the folder of each region's version, and the table as it is there
    commit_everywhere    each region that has all files lists them; where none has, one is completed

Law of this file: what a region does not take now it takes later by itself, from one that has it; so
one commit is enough, and a region that is away fails nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from ingester.pushes.push_config import RegionSettings
from ingester.pushes.record import PushRecord
from ingester.pushes.regions import AnotherStore, RegionFailed, RegionUnreachable
from ingester.pushes.spark.data_list import DataList
from ingester.pushes.spark.places import Place
from ingester.pushes.store_region.data_check import files_there
from ingester.pushes.store_region.data_copy import SourceFault, copy_missing
from ingester.pushes.store_region.pushed_files import PushedFile
from ingester.pushes.store_region.region import StoreRegion
from ingester.pushes.store_region.shapes import clash
from persist.store import StoreError
from persist.table import TableDefinition

Refusal = RegionFailed | RegionUnreachable
"""Why a region did not take the data: for good, or this time."""


class Targets(NamedTuple):
    """Where the files of a push go.

    Attributes:
        definition: The table, as it is in all of these regions, but for its ids.
    """

    places: tuple[Place, ...]
    definition: TableDefinition


def targets_of(
    regions: Mapping[str, StoreRegion], settings: Mapping[str, RegionSettings], record: PushRecord
) -> Targets | None:
    """Return the regions whose version is there, of those that answer; None where none does.

    Raises:
        RegionFailed: The tables of two regions are not alike; or the version was made in another
            store than the one that is a region here.
    """
    places: list[Place] = []
    found: dict[str, TableDefinition] = {}
    for name in regions_there(record):
        region, its = regions[name], settings[name]
        try:
            definition, root = region.definition(record), region.place(record).root
        except AnotherStore as exc:
            raise RegionFailed(f"region {name}: {exc}") from exc
        except RegionUnreachable:
            continue
        for other, table in found.items():
            if (why := clash(table, definition)) is not None:
                raise RegionFailed(f"its table is not that of region {other} and {name}: {why}")
        found[name] = definition
        places.append(Place(name, its.url, dict(its.storage_options), root))
    if not places:
        return None
    return Targets(tuple(places), _common(list(found.values())))


def _common(tables: Sequence[TableDefinition]) -> TableDefinition:
    """The table with the columns that all have: one that only some have got since is in no file."""
    first, *others = tables
    fields = [f for f in first.schema if all(f.name in each.schema.names for each in others)]
    return replace(first, schema=pa.schema(fields))


def regions_there(record: PushRecord) -> list[str]:
    """Return the names of the regions that are in the push and have its version."""
    return [r.name for r in record.regions if r.table_version is not None and not r.closed]


def commit_everywhere(
    regions: Mapping[str, StoreRegion], record: PushRecord, data: DataList
) -> dict[str, Refusal | None]:
    """Commit the data in each region that has all of its files.

    Where no region has all of them, as each was away for a while, one is completed first.

    Returns:
        What was wrong in each region that was asked; None where it has the data now.
    """
    there = regions_there(record)
    whole = [name for name in there if data.complete_in(name)]
    if not whole:
        most = [name for name in there if name in data.places]
        if not most:
            return {}
        whole = [max(most, key=data.count_in)]
        if (why := _complete(regions, record, data, whole[0])) is not None:
            return {whole[0]: why}
    files = [PushedFile.of(file.add) for file in data.files]

    def commit(name: str) -> Refusal | None:
        try:
            regions[name].commit_data(record, files)
        except (RegionUnreachable, RegionFailed) as exc:
            return exc
        return None

    with ThreadPoolExecutor(len(whole), thread_name_prefix="push-commit") as pool:
        return dict(zip(whole, pool.map(commit, whole), strict=True))


def _complete(
    regions: Mapping[str, StoreRegion], record: PushRecord, data: DataList, name: str
) -> Refusal | None:
    """Put into a region what it lacks, and return why that could not be done."""
    try:
        target = regions[name].place(record)
        for other in data.places:
            if other == name:
                continue
            taken = [f for f in data.files if name not in f.taken and other in f.taken]
            with suppress(SourceFault):
                source = regions[other].place(record)
                files: Sequence[PushedFile] = [PushedFile.of(file.add) for file in taken]
                while not copy_missing(source, target, files, files_there(*target)):
                    pass
    except (RegionUnreachable, RegionFailed) as exc:
        return exc
    except StoreError as exc:
        return RegionUnreachable(str(exc))
    return None
