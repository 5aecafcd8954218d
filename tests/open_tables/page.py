"""The lines of ``docs/open_tables.md`` that attach an engine, with addresses of a test.

Blocks of Python assign ``rows`` in each line that reads; blocks of SQL end with a count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.flight as fl

from persist.publish.format import FORMATS
from persist.publish.publisher import Publisher
from persist.store import open_store
from tests.drivers.daemon import Daemon
from tests.drivers.wire import events, persist, put
from tests.open_tables.processes import EngineFailed, EngineProcess
from tests.open_tables.trino import Trino

PAGE = Path(__file__).resolve().parents[2] / "docs" / "open_tables.md"

TABLE = ("shop", "visits")
ROWS = 100
"""One of them has a ``v`` below 0.5."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the heading that it stands under, its language, its text."""

    heading: str
    language: str
    text: str

    def lines_that_read(self) -> list[str]:
        """The statements of Python that assign ``rows``."""
        return [line for line in self.text.splitlines() if line.startswith("rows = ")]

    def statements(self) -> list[str]:
        """The statements of SQL, without those that install extensions."""
        found = [each.strip() for each in self.text.split(";")]
        return [each for each in found if each and not each.startswith(("INSTALL", "LOAD"))]


@dataclass(frozen=True, slots=True)
class Addresses:
    """What stands in place of the addresses on the page."""

    folder: str
    http: str
    flight: str
    s3: Mapping[str, Any]

    def put_into(self, text: str) -> str:
        """The text with these addresses."""
        endpoint = self.s3.get("endpoint_url", "")
        for there, here in (
            ("http://127.0.0.1:9000", endpoint),
            ("127.0.0.1:9000", endpoint.removeprefix("http://")),
            ("/srv/lake", self.folder),
            ("http://127.0.0.1:8080", self.http),
            ("grpc://127.0.0.1:8082", self.flight),
            ('"KEY"', f'"{self.s3.get("key")}"'),
            ('"SECRET"', f'"{self.s3.get("secret")}"'),
            ("'KEY'", f"'{self.s3.get('key')}'"),
            ("'SECRET'", f"'{self.s3.get('secret')}'"),
        ):
            text = text.replace(there, here)
        return text


def blocks(*headings: str) -> list[Block]:
    """The blocks under these headings, in order."""
    found, heading = [], ""
    for match in re.finditer(
        r"^#+ (?P<heading>[^\n]+)$|^```(?P<language>\w+)\n(?P<text>.*?)^```$",
        PAGE.read_text(),
        flags=re.MULTILINE | re.DOTALL,
    ):
        if match["heading"]:
            heading = match["heading"]
        elif heading in headings:
            found.append(Block(heading, match["language"], match["text"]))
    return found


def fill(daemon: Daemon, then: Callable[[], object] = lambda: None) -> None:
    """Write the table of the page in two versions with rows; do something after each."""
    with fl.connect(daemon.flight) as client:
        for first in (0, ROWS // 2):
            put(client, TABLE, events(first, ROWS // 2, days=3))
            persist(client, TABLE)
            then()


def publish(url: str, options: Mapping[str, Any]) -> None:
    """Publish the table of the page."""
    store = open_store(url, **options)
    told = Publisher(store, *TABLE).publish(FORMATS, retain_s=86_400.0)
    assert not any(one.refused or one.error for one in told), told


def attach(folder: Path, sparks: Sequence[EngineProcess], *, trino: bool) -> list[str]:
    """Run the lines of Spark and Trino; what went wrong."""
    faults = []
    with Daemon.start(folder / "data") as daemon:
        lake = daemon.data_dir / "store"
        fill(daemon, partial(publish, f"file://{lake}", {}))
        here = Addresses(str(lake), daemon.http, daemon.flight, {})
        found = blocks("Spark")
        conf = {
            name: here.put_into(value)
            for block in found
            if block.language == "properties"
            for name, value in (line.split() for line in block.text.splitlines())
            if name.startswith("spark.sql.catalog.lake")
        }
        lines = [line for block in found for line in block.lines_that_read()]
        for spark in sparks:
            for line in lines:
                try:
                    rows = spark.ask(python=here.put_into(line), conf=conf)["rows"]
                except EngineFailed as exc:
                    faults.append(f"{spark.name}: {line}: {exc}")
                    continue
                if rows not in ({ROWS - 1} if "0.5" in line else {ROWS, ROWS // 2, 2, 3}):
                    faults.append(f"{spark.name}: {line}: {rows} rows")
        if trino:
            (query,) = (block for block in blocks("Trino") if block.language == "sql")
            with Trino(f"{daemon.http}/iceberg") as server:
                told = server.run(query.text.replace("lake.", "rest.").strip(" ;\n")).to_pylist()
            if list(told[0].values()) not in ([ROWS], [ROWS // 2]):
                faults.append(f"trino: {query.text}: {told}")
    return faults
