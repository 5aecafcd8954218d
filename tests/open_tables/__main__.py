"""``python -m tests.open_tables``: every engine reads every kind of table, then a campaign.

Spark 4.0 and 4.1 are read with as well, and Trino if ``--trino`` is given. The campaign reads while
daemons write, compact and are killed. The exit code is 1 if a value differed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.flight as fl

from persist.store import open_store
from tests.drivers.daemon import Daemon
from tests.open_tables import campaign, page, processes
from tests.open_tables.checking import Checker
from tests.open_tables.engines import IN_PROCESS, Engine
from tests.open_tables.publishing import make
from tests.open_tables.tables import MAKERS, World
from tests.open_tables.trino import Trino


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.open_tables", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the campaign; 0 for none")
    parser.add_argument("--seed", type=int, default=0, help="of the campaign (default: the time)")
    parser.add_argument("--trino", action="store_true", help="needs `make open-trino`")
    parser.add_argument("--engines", default="", help="only these, by the beginning of their names")
    parser.add_argument("--tables", default="", help="only these kinds; `-` for none")
    asked = parser.parse_args()
    faults = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines = list(_engines(stack, asked.engines.split(","), trino=asked.trino))
        if asked.tables != "-":
            faults += read_all(folder / "tables", engines, asked.tables.split(","))
            sparks = [one for one in engines if isinstance(one, processes.EngineProcess)]
            sparks = [one for one in sparks if one.name.startswith("spark")]
            faults += page.attach(folder / "page", sparks, trino=asked.trino)
        if asked.seconds:
            told = campaign.run(folder / "campaign", engines, asked.seconds, asked.seed)
            print(told.text(), flush=True)
            faults += told.faults
    print("\n".join(faults) or "every engine returned every value")
    return bool(faults)


def _engines(stack: ExitStack, wanted: list[str], *, trino: bool) -> Iterator[Engine]:
    def chosen(name: str) -> bool:
        return any(name.startswith(each) for each in wanted)

    yield from (engine for engine in IN_PROCESS if chosen(engine.name))
    others: dict[str, Callable[[], processes.EngineProcess | None]] = {
        "duckdb": processes.duckdb,
        "spark 4.0": lambda: processes.spark("4.0"),
        "spark 4.1": lambda: processes.spark("4.1"),
    }
    for name, start in others.items():
        if chosen(name):
            engine = start()
            assert engine is not None, f"{name} is not installed: make open-tables"
            yield stack.enter_context(engine)
    if trino and chosen("trino"):
        yield stack.enter_context(Trino())


def read_all(folder: Path, engines: list[Engine], kinds: list[str]) -> list[str]:
    """Make the tables, and compare what each engine returns for each."""
    faults = []
    with (
        Daemon.start(folder / "data", persist__max_age="1h") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        store = open_store(f"file://{daemon.data_dir / 'store'}")
        world, checker = World(client, daemon.flight, store), Checker(store)
        names = [kind for kind in MAKERS if any(kind.startswith(each) for each in kinds)]
        tables = [make(world, kind) for kind in names]
        for engine in engines:
            for format in engine.formats:
                began, reads, found = time.monotonic(), checker.reads, []
                for table in tables:
                    found += checker.faults(engine, format, table)
                print(
                    f"{engine.name}, {format}: {checker.reads - reads} reads in"
                    f" {time.monotonic() - began:.1f} s, {len(found)} faults",
                    flush=True,
                )
                faults += found
    return faults


if __name__ == "__main__":
    sys.exit(main())
