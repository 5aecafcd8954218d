"""Commits the data of a push in the generations of its regions.

    targets_of           the generation's folder in each region, and the table's definition
    commit_everywhere    each region with all files commits them; if none has all, one is completed

A region that misses the commit copies the data later, so one commit is enough, and an unreachable
region fails nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from ingester.pushes.config import RegionSettings
from ingester.pushes.record import PushRecord
from ingester.pushes.regions.data import SourceFault, copy_missing, files_of
from ingester.pushes.regions.region import StoreRegion
from ingester.pushes.regions.shapes import PushedFile, clash
from ingester.pushes.spark.job import DataList
from ingester.pushes.spark.task import RegionFolder
from ingester.pushes.tasks import AnotherStore, RegionFailed, RegionUnreachable
from persist.store import StoreError
from persist.table import TableDefinition

Refusal = RegionFailed | RegionUnreachable
"""Why a region did not commit the data: for good, or this time."""


class Targets(NamedTuple):
    """The folders to which a push writes its files, and the table's definition there."""

    places: tuple[RegionFolder, ...]
    definition: TableDefinition


def targets_of(
    regions: Mapping[str, StoreRegion], settings: Mapping[str, RegionSettings], record: PushRecord
) -> Targets | None:
    """Return the reachable regions with a generation of the push; None if there is none.

    Raises:
        RegionFailed: the tables of two regions differ, or a generation was created in another store
            than the region has here.
    """
    places: list[RegionFolder] = []
    found: dict[str, TableDefinition] = {}
    for name in regions_with_generation(record):
        region, its = regions[name], settings[name]
        try:
            definition, root = region.definition(record), region.place(record).root
        except AnotherStore as exc:
            raise RegionFailed(f"region {name}: {exc}") from exc
        except RegionUnreachable:
            continue
        for other, table in found.items():
            if (why := clash(table, definition)) is not None:
                raise RegionFailed(f"the tables of regions {other} and {name} differ: {why}")
        found[name] = definition
        places.append(RegionFolder(name, its.url, dict(its.storage_options), root))
    if not places:
        return None
    return Targets(tuple(places), _common(list(found.values())))


def _common(tables: Sequence[TableDefinition]) -> TableDefinition:
    """The table with the columns that all regions have; no file has a column added since."""
    first, *others = tables
    fields = [f for f in first.schema if all(f.name in each.schema.names for each in others)]
    return replace(first, schema=pa.schema(fields))


def regions_with_generation(record: PushRecord) -> list[str]:
    """Return the names of the active regions that have the push's generation."""
    return [r.name for r in record.regions if r.table_version is not None and not r.closed]


def commit_everywhere(
    regions: Mapping[str, StoreRegion], record: PushRecord, data: DataList
) -> dict[str, Refusal | None]:
    """Commit the data in each region that has all of its files.

    If no region has all files, because each was unreachable for a while, one is completed first.

    Returns:
        The refusal of each region that was asked; None if it has the data now.
    """
    active = regions_with_generation(record)
    whole = [name for name in active if data.complete_in(name)]
    if not whole:
        most = [name for name in active if name in data.places]
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
    """Copy what a region lacks, and return why that failed."""
    try:
        target = regions[name].place(record)
        for other in data.places:
            if other == name:
                continue
            taken = [f for f in data.files if name not in f.taken and other in f.taken]
            with suppress(SourceFault):
                source = regions[other].place(record)
                files: Sequence[PushedFile] = [PushedFile.of(file.add) for file in taken]
                while not copy_missing(source, target, files, files_of(*target)):
                    pass
    except (RegionUnreachable, RegionFailed) as exc:
        return exc
    except StoreError as exc:
        return RegionUnreachable(str(exc))
    return None
