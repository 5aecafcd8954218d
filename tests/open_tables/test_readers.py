"""Every engine of the main environment, and DuckDB, returns what our own reader returns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.flight as fl
import pytest

from persist.store import open_store
from tests.drivers.daemon import Daemon
from tests.drivers.wire import query
from tests.open_tables import processes
from tests.open_tables.checking import Checker
from tests.open_tables.comparing import difference, own_rows
from tests.open_tables.engines import IN_PROCESS, Engine
from tests.open_tables.limits import LIMITS
from tests.open_tables.publishing import Published, make
from tests.open_tables.tables import MAKERS, World

pytestmark = pytest.mark.slow
SLOW = ("deltalake pyarrow", "wide")
"""Ten seconds for each read of a thousand columns; ``make open-tables`` waits for them."""
ENGINES = {engine.name: engine for engine in IN_PROCESS}


class Made(NamedTuple):
    """All tables, and what they are compared with."""

    world: World
    tables: dict[str, Published]
    checker: Checker


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """All kinds of tables, each published after each of its stages."""
    folder = tmp_path_factory.mktemp("open")
    with (
        Daemon.start(folder / "data", persist__max_age="1h") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        store = open_store(f"file://{daemon.data_dir / 'store'}")
        world = World(client, daemon.flight, store)
        yield Made(world, {kind: make(world, kind) for kind in MAKERS}, Checker(store))


@pytest.fixture(scope="module")
def duckdb() -> Iterator[Engine]:
    """DuckDB with its extensions, in a process of its own."""
    engine = processes.duckdb()
    if engine is None:
        pytest.skip("DuckDB's extensions are not installed: make open-duckdb")
    with engine:
        yield engine


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_returns_what_our_own_reader_returns(made: Made, name: str) -> None:
    check(made, ENGINES[name])


def test_duckdb_returns_what_our_own_reader_returns(made: Made, duckdb: Engine) -> None:
    check(made, duckdb)


def check(made: Made, engine: Engine) -> None:
    """Read every table in every way; the limits of the engine must show, and nothing else."""
    faults = [
        fault
        for format in engine.formats
        for table in made.tables.values()
        if (engine.name, table.kind) != SLOW
        for fault in made.checker.faults(engine, format, table)
    ]
    assert faults == []
    assert {one for one in LIMITS if engine.name.startswith(one.engine)} <= made.checker.met


@pytest.mark.parametrize("kind", MAKERS)
def test_the_rows_that_engines_are_compared_with_are_those_of_a_query(
    made: Made, kind: str
) -> None:
    table = made.tables[kind]
    own = own_rows(made.world.store, table.table, table.versions[-1])
    asked = query(made.world.client, table.table, columns=own.schema.names)
    assert difference(asked, own) is None


def test_a_data_set_of_deltalake_loses_rows_of_files_without_bounds(tmp_path: Path) -> None:
    # Its own table: the first file knows nothing of a column that was added later.
    deltalake.write_deltalake(tmp_path, pa.table({"n": [1, 2]}))
    more = pa.table({"n": [3], "a": ["x"]})
    deltalake.write_deltalake(tmp_path, more, mode="append", schema_mode="merge")
    rows = deltalake.DeltaTable(tmp_path).to_pyarrow_dataset()
    assert len(rows.to_table(filter=ds.field("a").is_null())) == 0, "fixed: see limits"
