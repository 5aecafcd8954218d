"""Each line of docs/open_tables.md that attaches an engine works, on a folder, S3 and REST."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingester.config import settings as config
from tests.drivers.daemon import Daemon
from tests.drivers.s3_server import S3Server
from tests.open_tables import processes
from tests.open_tables.page import ROWS, Addresses, Block, blocks, fill, publish
from tests.open_tables.processes import EngineProcess

pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """A published table in a folder, with a daemon, and one in a bucket."""
    folder = tmp_path_factory.mktemp("page")
    with S3Server.start() as server:
        server.make_bucket("lake")
        with Daemon.start(
            folder / "s3", environment=server.environment, store="s3://lake"
        ) as daemon:
            fill(daemon)
        publish("s3://lake", server.storage_options)
        with Daemon.start(folder / "data") as daemon:
            fill(daemon)
            lake = daemon.data_dir / "store"
            publish(f"file://{lake}", {})
            yield Addresses(str(lake), daemon.http, daemon.flight, server.storage_options)


@pytest.fixture(scope="module")
def duckdb() -> Iterator[EngineProcess]:
    engine = processes.duckdb()
    if engine is None:
        pytest.skip("DuckDB's extensions are not installed: make open-duckdb")
    with engine:
        yield engine


PYTHON = blocks("pyiceberg", "Polars", "deltalake")
SQL = blocks("DuckDB")
assert (len(PYTHON), len(SQL)) == (6, 4)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.heading)
def test_a_block_of_python_reads_the_table(block: Block, addresses: Addresses) -> None:
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(addresses.put_into(block.text), names)
    assert len(names["rows"]) == (ROWS - 1 if "0.5" in block.text else ROWS)


@pytest.mark.parametrize("block", SQL, ids=lambda block: block.text.split()[1])
def test_a_block_of_sql_reads_the_table(
    block: Block, addresses: Addresses, duckdb: EngineProcess
) -> None:
    *before, query = Block("", "", addresses.put_into(block.text)).statements()
    answer = duckdb.ask(before=before, query=query)
    assert [list(row.values()) for row in answer["rows"]] == [[ROWS - 1]]


def test_publishing_is_switched_on_as_the_page_says(addresses: Addresses, tmp_path: Path) -> None:
    by_settings, by_client, by_command, *_ = blocks("Switching it on")
    told = tomllib.loads(by_settings.text)
    (tmp_path / "ingester.toml").write_text(by_settings.text)
    with Daemon.start(
        tmp_path / "data", arguments=("--config", str(tmp_path / "ingester.toml"))
    ) as daemon:
        lake = str(daemon.data_dir / "store")
        here = Addresses(lake, daemon.http, daemon.flight, {})
        exec(here.put_into(by_client.text).replace("visits", "others"), {})
        fill(daemon)
    assert told["publish"]["formats"] == list(config.OPEN_FORMATS)
    for line in here.put_into(by_command.text).splitlines():
        words = line.partition("#")[0].split()
        done = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
