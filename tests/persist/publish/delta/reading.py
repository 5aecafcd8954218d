"""Reads a published Delta table with deltalake and Polars."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa

from persist.publish.delta import DeltaTable
from persist.publish.steps import Step
from persist.store import ObjectStore
from tests.persist.publish.tables import BuiltTable, fitted

NAMES = ("deltalake", "deltalake's dataset", "polars")


def read(reader: str, root: str, version: int | None = None) -> pa.Table:
    """All rows of the table in this folder, in the reader's types."""
    if reader == "polars":
        return pl.scan_delta(root, version=version).collect().to_arrow()
    table = deltalake.DeltaTable(root, version=version)
    if reader == "deltalake":
        return pa.table(table.scan())
    return table.to_pyarrow_dataset().to_table()


def check_read(reader: str, root: str, step: Step, wanted: pa.Table) -> None:
    """Check that a reader returns exactly these rows at a step."""
    found = read(reader, root, step.place.number)
    assert found.schema.names == wanted.schema.names
    assert comparable(fitted(found, wanted.schema)) == comparable(wanted)


def comparable(rows: pa.Table) -> list[str]:
    """Rows in an order of their own; NaN equals NaN, and zeros differ by sign."""
    return sorted(map(repr, rows.to_pylist()))


def publish_all(store: ObjectStore, table: BuiltTable) -> DeltaTable:
    """The table, published step by step."""
    published = DeltaTable(store, "ns", table.table)
    published.publish(table.steps(), retain_s=0)
    return published


def root_of(store: ObjectStore) -> str:
    """The folder of the table ``ns/t`` on a local store."""
    return store.url.removeprefix("file://") + "/ns/t"


def log_names(store: ObjectStore) -> list[str]:
    """The names in the log's folder."""
    return sorted(Path(info.path).name for info in store.list("ns/t/_delta_log/"))


def commit_lines(store: ObjectStore, number: int) -> list[dict[str, Any]]:
    """The actions of a commit."""
    data = store.get(f"ns/t/_delta_log/{number:020d}.json")
    return [json.loads(line) for line in data.splitlines()]


def complete(step: Step) -> Step:
    """The step of a publisher that does not know the version before."""
    return replace(step, complete=True, added=tuple(step.files()), removed=())
