"""The questions to a daemon that starts on old data, to its store and to its log.

The answers are JSON. The release that wrote the data answered the same questions, and today's
answers must be equal.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
from prometheus_client.parser import text_string_to_metric_families

from tests.drivers.daemon import Daemon
from tests.drivers.syncing import KEEP, Source
from tests.drivers.wire import (
    Json,
    Table,
    act,
    delete,
    describe,
    http,
    origin_of,
    persist,
    put,
    query,
)
from tests.upgrades.fixture import tables_of
from tests.upgrades.lives import checkpoints, shipped
from tests.upgrades.written import (
    CHECKED,
    COPIES,
    COPY,
    DISKLESS,
    EVENTS,
    KEYED,
    NO_DISK,
    PLAIN,
    PUSHED,
    SHIP,
    STATION,
    STORED,
    VERSIONS,
    changes,
    event_batch,
    keyed_batch,
    plain_batch,
)

SETTINGS: dict[str, Any] = {
    "id": "compatible",
    "persist__max_age": "30d",
    "replication__max_lag": "30d",
    "memory__limit": "512MiB",
    # The data ages, but is queried as if it were new.
    "manifest__retain": "3650d",
    "manifest__orphan_grace": "365d",
    "origins__expire_after": "3650d",
}

Command = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs ``ingester`` with these arguments, with the code of the old or of the new version."""


def of_the_log(command: Command, data_dir: Path) -> Json:
    """What the operator's tools report about a log on which no daemon has started yet."""
    return {
        name: told(command(["wal", name, str(data_dir), "--json"]), data_dir)
        for name in ("inspect", "verify")
    }


def of_the_store(command: Command, data: Path) -> Json:
    """What the operator's tools report about a store, with every version of every table."""
    url = f"file://{data}/store"
    answers: Json = {
        name: told(command(["manifest", name, url, "--json"]), data) for name in ("log", "verify")
    }
    for namespace, name in tables_of(data / "store"):
        shown = command(["manifest", "show", url, namespace, name, "--json"])
        answer = told(shown, data)
        for version in answer["said"]:
            version["applied"].sort(key=str)  # comes from a hash map, in no order
        answers[f"show {namespace}/{name}"] = answer
    return answers


def of_the_settings(command: Command) -> Json:
    """The keys of all settings, with the values that do not depend on the machine."""
    said = json.loads(command(["config", "--json"]).stdout)
    machines = ("id", "data_dir", "store", "memory.")
    return {key: None if key.startswith(machines) else one["value"] for key, one in said.items()}


def of_a_life(data: Path) -> Json:
    """Start on the old data, ask, write more, ask again; and once more after a kill."""
    tables = tables_of(data / "store")
    with Daemon.start(data, **SETTINGS) as daemon:
        with fl.connect(daemon.flight) as client:
            answers = {
                "found": of_the_daemon(client, tables),
                "written": written_on(client, tables),
                "afterwards": of_the_daemon(client, tables),
                "actions": sorted(action.type for action in client.list_actions()),
            }
        answers["metrics"] = metrics(http(f"{daemon.http}/metrics")[2].decode())
        answers["status"] = sorted(set(keys(json.loads(http(f"{daemon.http}/api/status")[2]))))
        daemon.kill()
        with daemon.again() as again, fl.connect(again.flight) as client:
            return {**answers, "in the end": of_the_daemon(client, tables)}


def of_an_adoption(command: Command, data: Path) -> Json:
    """Adopt the log without a daemon, twice; another daemon then reads the store."""
    store = f"file://{data}/store"
    adopt = ["wal", "adopt", str(data), "--store", store, "--json"]
    answers: Json = {"reports": [told(command(adopt), data) for _ in range(2)]}
    settings = {**SETTINGS, "id": "another", "store": store}
    with (
        Daemon.start(data.with_name("another"), **settings) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        return {**answers, "read": of_the_daemon(client, tables_of(data / "store"))}


def without_a_disk(data: Path) -> dict[str, Any]:
    """The settings of the daemon ``NO_DISK``."""
    return {**SETTINGS, "id": NO_DISK, "store": f"file://{data}/store", "wal__disk": "off"}


def of_lost_disks(command: Command, data: Path) -> Json:
    """What the log objects hold: both daemons start with empty folders; then one is adopted."""
    store = f"file://{data}/store"
    answers: Json = {
        f"{name} {id}": told(command(["wal", name, "--from-store", id, *of, "--json"]), data)
        for of in [("--store", store)]
        for id in (SETTINGS["id"], NO_DISK)
        for name in ("inspect", "verify")
    }
    lives = ((STORED, {**SETTINGS, "store": store}), (DISKLESS, without_a_disk(data)))
    for table, settings in lives:
        folder = data.with_name(f"empty-{settings['id']}")
        with Daemon.start(folder, **settings) as daemon, fl.connect(daemon.flight) as client:
            answers[settings["id"]] = of_shipped(client, table)
            shipped(client, table, 5, 6)
            daemon.kill()
    adopt = ["wal", "adopt", "--from-store", NO_DISK, "--store", store, "--json"]
    answers["reports"] = [told(command(adopt), data) for _ in range(2)]
    with (
        Daemon.start(
            data.with_name("another"), **SETTINGS | {"id": "another", "store": store}
        ) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        return {**answers, "read": of_shipped(client, DISKLESS)}


def of_shipped(client: fl.FlightClient, table: Table) -> Json:
    """The answers about a table that ``SHIP`` writes."""
    states = act(client, "checkpoints", namespace=table[0], table=table[1])
    return {
        "all": rows(client, table),
        "level": describe(client, table)["ack"],
        "origin": origin_of(client, SHIP),
        "checkpoints": [
            {name: value for name, value in each.items() if name not in ("at", "durable")}
            for each in states
        ],
    }


def of_the_daemon(client: fl.FlightClient, tables: Sequence[Table]) -> Json:
    """The answers of a daemon to requests that change nothing."""
    answers: Json = {
        "tables": sorted(
            [*(part.decode() for part in info.descriptor.path), info.total_records]
            for info in client.list_flights()
        ),
        "origins": sorted(act(client, "origins"), key=lambda one: str(one["origin"])),
        "standing": {name: Source(client, COPY, name).ask() for name in COPIES},
    }
    for table in tables:
        said = describe(client, table)
        del said["buffered"]["bytes"]  # the memory of two versions differs
        if said.get("owner"):
            said["owner"].pop("endpoint", None)  # the port differs each time
        versions = range(1, said["manifest_version"] + 1)
        answers["/".join(table)] = {
            "description": said,
            "all": rows(client, table),
            "buffered": rows(client, table, scope="buffered"),
            "versions": [digest(client, table, version) for version in versions],
        }
    answers["filtered"] = [
        rows(client, EVENTS, columns=["i"], filter=[[["host", "=", "h1"], ["i", ">", 20]]]),
        rows(client, KEYED, columns=["k"], filter=[[["s", "is null"]]]),
        rows(client, PLAIN, columns=["note"], filter=[[["i", "in", [0, 3, 30]]]]),
    ]
    if CHECKED in tables:
        # The replayed rows are being flushed meanwhile, and the tests' own rows are new.
        states = act(client, "checkpoints")
        answers["checkpoints"] = [
            {name: value for name, value in each.items() if name not in ("at", "durable")}
            for each in states
        ]
    if PUSHED in tables:
        answers["by table version"] = [
            rows(client, PUSHED, table_version=number) for number in VERSIONS
        ]
    return answers


def written_on(client: fl.FlightClient, tables: Sequence[Table]) -> Json:
    """The answers to a client that resumes after the kill, with repeated and new batches."""
    source, other = (Source(client, COPY, name) for name in COPIES)
    written = {
        "plain": put(client, PLAIN, plain_batch(200, 5)),
        "repeated and new": put(
            client,
            EVENTS,
            *(event_batch(number) for number in range(1, 12)),
            origin=STATION,
            metadata=[{"sequence": number} for number in range(1, 12)],
        ),
        "keyed": put(client, KEYED, keyed_batch(range(5, 9), "new")),
        "deleted": delete(client, KEYED, pa.record_batch({"k": pa.array([6, 30], pa.int64())})),
        # The first transaction had closed 1 to 3 and left one open; the second had only closed one.
        "transactions": [
            source.send("a", changes(3), sequence=3),
            source.send("a", changes(4), begin=True, transaction="four"),
            source.send("b", [(2, 2, {"v": 2.5, "s": KEEP})], sequence=4, transaction="four"),
            other.send("b", [(None, 77, {"v": 7.7, "s": "seven"})], sequence=11),
        ],
    }
    if CHECKED in tables:
        checkpoints(client, 6, 9, shared=b"of another release")  # the first two are repeated
    if PUSHED in tables:
        written["pushed"] = put(client, PUSHED, plain_batch(200, 5))
    persisted = {"/".join(table): persist(client, table) for table in tables}
    return {**written, "persisted": persisted}


def metrics(text: str) -> Json:
    """The type of each metric, and the names of its labels."""
    return {
        family.name: [family.type, sorted({name for one in family.samples for name in one.labels})]
        for family in text_string_to_metric_families(text)
        if family.name.startswith("ingester_")
    }


def keys(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all JSON values that are not objects, without the positions in lists."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from keys(item, f"{path}.{name}")
    elif isinstance(value, list) and value:
        for item in value:
            yield from keys(item, f"{path}[]")
    else:
        yield path


def rows(client: fl.FlightClient, table: Table, **fields: object) -> Json:
    """Schema and rows of an answer, the rows sorted."""
    found = query(client, table, **fields)
    return {
        "schema": {field.name: str(field.type) for field in found.schema},
        "rows": plain_rows(found),
    }


def digest(client: fl.FlightClient, table: Table, version: int) -> str:
    """The row count of a version, and a digest of its many rows and their schema."""
    found = rows(client, table, scope="version", version=version)
    text = json.dumps(found, sort_keys=True).encode()
    return f"{len(found['rows'])} rows, {hashlib.sha256(text).hexdigest()[:16]}"


def plain_rows(found: pa.Table) -> list[Any]:
    """The rows as JSON, sorted."""
    columns = []
    for column in found.columns:
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            column = column.cast(pa.int64())
        columns.append([plain(value) for value in column.to_pylist()])
    return sorted(([*row] for row in zip(*columns, strict=True)), key=json.dumps)


def plain(value: object) -> Any:
    """The value as JSON has it."""
    match value:
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case bytes():
            return value.hex()
        case float() if value != value:
            return "nan"
        case dt.date() | Decimal():
            return str(value)
    return value


def told(done: subprocess.CompletedProcess[str], data: Path) -> Json:
    """Exit code and JSON output of a command, without the path of the data."""
    return {"code": done.returncode, "said": json.loads(done.stdout.replace(str(data), "DATA"))}
