"""Today's answers about the data of each release's killed daemons equal the release's own answers.

A fixture is never regenerated to make a test pass. Deliberate changes of a later release are
listed here.
"""

from __future__ import annotations

import json
import os
import subprocess
import typing
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

import ingester
from ingester.dml.control_records import decode_record
from ingester.dml.record import decode_schema
from persist.manifest.actions import Add, OtherAction
from tests.drivers.daemon import ROOT, Daemon, DaemonEnded
from tests.drivers.warm import warm
from tests.drivers.wire import Json, Table, query
from tests.upgrades import asking
from tests.upgrades.fixture import Fixture, fixtures, tables_of
from tests.upgrades.written import NO_DISK, PLAIN, PUSHED
from wal import Disk, RecordKind
from wal.format import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, segment_name
from wal.recovery import FileSource, facts_of, survey
from wal.replay import ReplayCursor
from wal.scan import find_headers


@pytest.fixture(scope="module", params=fixtures(), ids=lambda each: str(each.release))
def fixture(request: pytest.FixtureRequest) -> Fixture:
    """The fixture of one release."""
    found: Fixture = request.param
    return found


@pytest.fixture(scope="module")
def answers(fixture: Fixture) -> dict[str, Any]:
    """The answers of that release."""
    return fixture.answers()


@pytest.fixture
def data(fixture: Fixture, tmp_path: Path) -> Path:
    """A copy of its data directory."""
    return fixture.unpacked(tmp_path)


def command(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("INGESTER_")}
    done = warm().run(list(arguments), kept, ROOT)
    return subprocess.CompletedProcess(
        list(arguments), done.returncode, done.stdout.decode(), done.stderr.decode()
    )


NAMES = ("actions", "status")
"""The answers that are lists of names, to which later versions add."""


FLUSHED = {"manifest_version", "buffered", "persisted", "versions"}
"""What changes at any time after a start in tables at level store, which are flushed at once."""
UNSETTLED = ("found", "written")
"""The answers that are given while replayed rows are being flushed."""


REMOVED = {
    "flight.idle_timeout",
    "ingester_connections_open",
    "ingester_trace_spans",
    "ingester_trace_spans_waiting",
    "limits.calls",
    "limits.connections",
    "limits.connections_per_peer",
    "limits.hold_back",
    "limits.http_connections",
}
"""Settings and metrics that were removed on purpose; a proxy replaces them."""

REMOVED_FIELDS = (
    ".admission.memory.by_kind.decoding",
    ".admission.memory.by_kind.dictionaries",
    ".admission.memory.by_kind.spans",
    ".admission.memory.by_kind.unaccounted",
    ".connections",
)
"""Fields of the status that were removed on purpose."""

SENTENCES = {"expected", "found", "help", "message", "problem", "reason"}
"""Fields that may hold sentences for people, which later releases may word differently."""


def check(found: Json, expected: Json, *, settled: bool = True) -> None:
    """Compare answer by answer, so that a failure shows one difference only."""
    assert expected.keys() - found.keys() - REMOVED == set()
    description = expected.get("description", expected)
    at_store = isinstance(description, dict) and description.get("ack") == "store"
    for asked, answer in expected.items():
        if asked in REMOVED or (asked in FLUSHED and at_store):
            continue
        if isinstance(answer, dict):
            if asked == "metrics":
                answer = {name: one for name, one in answer.items() if not is_a_birthday(name, one)}
            check(found[asked], answer, settled=settled and asked not in UNSETTLED)
        elif asked in NAMES:
            gone = {each for each in answer if each.startswith(REMOVED_FIELDS)}
            assert set(answer) - set(found[asked]) - gone == set(), asked
        elif asked == "bytes":
            # Of files: later releases write more metadata into them, such as ids of columns.
            assert found[asked] >= answer
        else:
            assert as_then(found[asked], answer, settled) == answer, asked


def is_a_birthday(name: str, described: list[Any]) -> bool:
    """Whether a metric only gives the creation time of another; not all libraries emit these."""
    return name.endswith("_created") and described[0] == "gauge"


def as_then(found: Any, expected: Any, settled: bool) -> Any:
    """The answers without names that were added later, which clients ignore."""
    if isinstance(found, dict) and isinstance(expected, dict):
        kept = found.keys() & expected.keys()
        then = {
            name: expected[name]
            if name in SENTENCES and is_sentence(found[name]) and is_sentence(expected[name])
            else as_then(found[name], expected[name], settled)
            for name in found
            if name in kept
        }
        if "durable_sequence" in kept:
            assert (found["durable_sequence"] or 0) <= (found["memory_sequence"] or 0)
            if not settled or expected["durable_sequence"] is None:
                then["durable_sequence"] = expected["durable_sequence"]
        if "files_sequence" in kept and not settled:
            then["files_sequence"] = expected["files_sequence"]
        return then
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return [as_then(*pair, settled) for pair in zip(found, expected, strict=True)]
    return found


def is_sentence(value: object) -> bool:
    """Whether a value is text of several words."""
    return isinstance(value, str) and " " in value


NEVER_MADE = {"epoch_complete"}
"""Actions that are read, but that no release has written so far."""


def test_what_this_release_writes_is_in_its_fixture(tmp_path: Path) -> None:
    data = Fixture(ingester.__version__).unpacked(tmp_path)  # run `make fixture` if this is missing
    actions = {
        json.loads(line).get("action")
        for path in data.joinpath("store").rglob("*.changelog")
        for line in path.read_text().splitlines()
    }
    kinds = {each.__struct_config__.tag for each in (Add, *typing.get_args(OtherAction))}
    assert kinds - actions == NEVER_MADE
    records = set()
    objects = sorted(data.joinpath("store", "_log").rglob("*.wal"))
    assert {path.parts[-3] for path in objects} == {asking.SETTINGS["id"], NO_DISK}
    for path in (*data.joinpath("wal").glob("*.wal"), *objects):
        with FileSource(Disk(), path) as source:
            found = find_headers(source, int(path.stem), SEGMENT_HEADER_BYTES)
            records |= {each.header.kind for each in found}
    assert records == set(RecordKind)


CHANGED_DEFAULTS = {"stop_deadline": "150s"}
"""Settings whose default changed on purpose since a release, and their default now."""


def test_the_settings_are_what_they_were(answers: Json) -> None:
    check(asking.of_the_settings(command), {**answers["settings"], **CHANGED_DEFAULTS})


def test_the_tools_tell_the_same_of_the_log(data: Path, answers: Json) -> None:
    check(asking.of_the_log(command, data), answers["log"])


def test_the_tools_tell_the_same_of_the_store_and_find_nothing_wrong(
    data: Path, answers: Json
) -> None:
    told = asking.of_the_store(command, data)
    assert told["verify"]["code"] == 0
    check(told, answers["store"])


def test_a_daemon_answers_the_same_and_the_same_again_after_it_wrote_on(
    data: Path, answers: Json
) -> None:
    check(asking.of_a_life(data), answers["daemon"])
    # The data that it has written on top of the old data answers the same.
    assert asking.of_the_store(command, data)["verify"]["code"] == 0


WITHOUT_LOG_OBJECTS = ("before-0.1.0", "0.1.0")
"""Releases without the level ``store``. Their adoption did not hold keyed tables, and did not
replace the log's last epoch in tables that only its earlier epochs had written to."""


@pytest.mark.parametrize(
    "fixture",
    [each for each in fixtures() if each.release not in WITHOUT_LOG_OBJECTS],
    ids=lambda each: str(each.release),
    indirect=True,
)
def test_what_was_acknowledged_at_store_outlives_each_disk(data: Path, answers: Json) -> None:
    check(asking.of_lost_disks(command, data), answers["lost"])


def test_an_adoption_brings_the_same_rows_once(fixture: Fixture, data: Path, answers: Json) -> None:
    expected = answers["adopted"]
    if fixture.release in WITHOUT_LOG_OBJECTS:
        expected = replaced_and_held(expected)
    check(asking.of_an_adoption(command, data), expected)


def replaced_and_held(adopted: Json) -> Json:
    """The answers, with one more version of tables whose writer is replaced, and of keyed ones."""
    tables = dict(adopted["read"])
    for name, answer in tables.items():
        if not isinstance(answer, dict) or "description" not in answer:
            continue
        said, versions = answer["description"], answer["versions"]
        if name in ("/".join(PLAIN), "/".join(PUSHED)):
            versions = [*versions[:-1], versions[-2], versions[-1]]
        elif said["primary_key"]:
            versions = [*versions, versions[-1]]
        more = said | {"manifest_version": len(versions)}
        tables[name] = answer | {"description": more, "versions": versions}
    return adopted | {"read": tables}


@pytest.mark.parametrize("adopted", [False, True], ids=["replayed", "adopted"])
def test_a_repair_of_a_damaged_log_loses_one_record_and_no_other(
    fixture: Fixture, data: Path, tmp_path: Path, adopted: bool
) -> None:
    tables = tables_of(data / "store")
    with Daemon.start(fixture.unpacked(tmp_path / "whole"), **asking.SETTINGS) as daemon:
        before = counted(daemon, tables)
    segment, offset, lost = plain_record(data / "wal")
    flip(data / "wal" / segment_name(segment), offset + RECORD_HEADER_BYTES)
    assert command(["wal", "verify", str(data)]).returncode != 0
    with pytest.raises(DaemonEnded, match="wal repair"):
        Daemon.start(data, **asking.SETTINGS)
    done = command(["wal", "repair", str(data), "--json"])
    assert done.returncode == 0, done.stderr
    (repaired,) = json.loads(done.stdout)["segments"]
    assert (repaired["file"], repaired["records_lost"]) == (segment_name(segment), 1)
    settings = asking.SETTINGS
    if adopted:
        store = f"file://{data}/store"
        done = command(["wal", "adopt", str(data), "--store", store])
        assert done.returncode == 0, done.stderr
        data, settings = tmp_path / "another", {**settings, "id": "another", "store": store}
    with Daemon.start(data, **settings) as daemon:
        after = counted(daemon, tables)
    plain = before.pop(PLAIN)
    assert after.pop(PLAIN) == plain - Counter(lost)
    assert after == before


def counted(daemon: Daemon, tables: Sequence[Table]) -> dict[Table, Counter[Any]]:
    """The first column of all rows of each table."""
    with fl.connect(daemon.flight) as client:
        return {table: Counter(query(client, table).column(0).to_pylist()) for table in tables}


def plain_record(folder: Path) -> tuple[int, int, list[Any]]:
    """A record of ``PLAIN`` amid others: its segment, its offset, and the numbers of its rows."""
    found = survey(Disk(), folder)
    pairs = zip(found.verdicts, found.states(), strict=True)
    facts = [facts_of(verdict, state) for verdict, state in pairs]
    cursor = ReplayCursor(Disk(), folder, facts, pa.allocate_buffer)
    records: list[tuple[int, int, list[Any]]] = []
    schemas: dict[int, pa.Schema] = {}
    segment = -1
    while (chunk := cursor.next_chunk()) is not None:
        for record in chunk:
            if record.segment != segment:
                segment = record.segment
                schemas.clear()
            if record.kind == RecordKind.SCHEMA:
                header, schema = decode_schema(record.payload)
                schemas[header.schema_number] = schema
            elif record.kind == RecordKind.OPERATION:
                logged = decode_record(record.payload, schemas, record.operations)[0]
                if (logged.header.namespace, logged.header.table) == PLAIN:
                    rows = logged.parts[0].batch.column("i").to_pylist()
                    records.append((segment, record.offset, rows))
    return records[len(records) // 2]


def flip(path: Path, offset: int) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)
