"""Makes what is in this folder, by the code of another version.

    python -m tests.compatibility.make CHECKOUT

``CHECKOUT`` is a folder with that version and its environment in ``.venv``. Its daemon writes, is
killed, starts again, writes on and is killed once more; its Spark compacts and appends; then it is
started on copies of what it left, and asked what the tests will ask.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl

from tests.compatibility import asking
from tests.compatibility.written import (
    COPIES,
    COPY,
    EVENTS,
    KEYED,
    KEYED_SCHEMA,
    NANOS,
    NANOS_SCHEMA,
    PLAIN,
    STATION,
    changes,
    event_batch,
    keyed_batch,
    nanos_batch,
    plain_batch,
)
from tests.drivers.daemon import Daemon, Launch
from tests.drivers.syncing import KEEP, Source
from tests.drivers.waiting import until
from tests.drivers.wire import create, delete, describe, persist, put, query

HERE = Path(__file__).parent

SPARK = """
import sys
from pyspark.sql import functions as F
from ingester.spark import compact, register, rewrite
from ingester.spark.session import local_session

url = sys.argv[1]
spark = local_session("old data", cores=1, shuffle_partitions=1)
register(spark)
frame = spark.range(100, 106).select(
    F.col("id").cast("int").alias("i"), F.concat(F.lit("spark"), "id").alias("note")
)
writer = frame.write.format("ingester").mode("append").option("checkpointLocation", sys.argv[2])
writer.save(f"{url}/old/plain")
compact(spark, url, "old", "plain")
rewrite(spark, url, "old", "events", partition_by=["day(time)", "bucket(4, host)"],
        filter="time < '2026-11-22'")
spark.stop()
"""


def main() -> None:
    """Make all of it."""
    checkout = Path(sys.argv[1]).resolve()
    python = checkout / ".venv" / "bin" / "python"
    Launch.root, Launch.command = checkout, [str(python), "-m", "ingester", "serve"]

    def command(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        line = [str(python), "-m", "ingester", *arguments]
        return subprocess.run(line, cwd=checkout, capture_output=True, text=True)

    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch, "written", "data")
        write(data, python, checkout)
        pack_data(data)
        copies = [
            asking.unpacked(Path(scratch, name)) for name in ("looked-at", "started", "adopted")
        ]
        answers = {
            "settings": asking.of_the_settings(command),
            "log": asking.of_the_log(command, copies[0]),
            "store": asking.of_the_store(command, copies[0]),
            "daemon": asking.of_a_life(copies[1]),
            "adopted": asking.of_an_adoption(command, copies[2]),
        }
    lines = (f"{json.dumps(name)}: {json.dumps(said)}" for name, said in answers.items())
    (HERE / "answers.json").write_text("{" + ",\n".join(lines) + "}\n")
    pack_client(checkout)


def write(data: Path, python: Path, checkout: Path) -> None:
    """A first life that persists much, Spark's part beside it, and a second one that does not."""
    settings = {**asking.SETTINGS, "wal__segment_bytes": "16KiB"}
    with Daemon.start(data, **settings) as daemon:
        with fl.connect(daemon.flight) as client:
            first_life(client)
            sequences(client, 4, 4)  # waits by the first spec
            spark = [str(python), "-c", SPARK, f"file://{data}/store", f"{data}.checkpoints"]
            environment = {**os.environ, "PYSPARK_PYTHON": str(python)}
            subprocess.run(spark, cwd=checkout, check=True, env=environment)
            last = 20
            until(lambda: query(client, PLAIN).num_rows == last + 6, "the daemon to see Spark's")
            many_versions(client, data)
            left_in_the_log(client)
        daemon.kill()
        with daemon.again() as again:
            with fl.connect(again.flight) as client:
                second_life(client)
            again.kill()


def first_life(client: fl.FlightClient) -> None:
    """Tables of each kind, with rows in files."""
    put(client, PLAIN, plain_batch(0, 10))
    persist(client, PLAIN)
    put(client, PLAIN, plain_batch(10, 5))
    put(client, PLAIN, plain_batch(15, 5, wider=True))
    persist(client, PLAIN)
    create(client, EVENTS, event_batch(0).schema, partition_by=["day(time)"], sort_by=["host"])
    sequences(client, 1, 3)
    persist(client, EVENTS)
    create(client, KEYED, KEYED_SCHEMA, primary_key=["k"])
    put(client, KEYED, keyed_batch(range(20), "one"))
    persist(client, KEYED)
    delete(client, KEYED, pa.record_batch({"k": pa.array([3, 4], pa.int64())}))
    put(client, KEYED, keyed_batch([4, 20], "two"))
    persist(client, KEYED)
    create(
        client,
        NANOS,
        NANOS_SCHEMA,
        partition_by=["identity(zip)", "bucket(2, zip)"],
        sort_by=["at"],
        timestamp_unit="ns",
    )
    put(client, NANOS, nanos_batch(0, 20))
    persist(client, NANOS)
    source = Source(client, COPY, COPIES[0])
    for name in ("a", "b"):
        create(client, (COPY, name), pa.schema({"id": pa.int64()}), primary_key=["id"])
    source.send("a", changes(1), sequence=1)
    source.send("b", [(None, 1, {"v": 1.5, "s": "one"})], begin=True, transaction="two")
    source.send("a", changes(2), sequence=2, transaction="two")
    for name in ("a", "b"):
        persist(client, (COPY, name))


def many_versions(client: fl.FlightClient, data: Path) -> None:
    """Versions of one table until there is a snapshot behind the head."""
    folder = data.joinpath("store", *KEYED)
    for number in range(500):
        if list(folder.rglob("*.snapshot")):
            break
        put(client, KEYED, keyed_batch([30 + number % 3], f"version {number}"))
        persist(client, KEYED)
    else:
        raise AssertionError("no snapshot")
    put(client, KEYED, keyed_batch([40], "after the snapshot"))
    persist(client, KEYED)


def left_in_the_log(client: fl.FlightClient) -> None:
    """Rows that are in no file when the daemon is killed, in several segments."""
    put(client, PLAIN, plain_batch(30, 10))
    sequences(client, 5, 6)
    delete(client, KEYED, pa.record_batch({"k": pa.array([1, 2], pa.int64())}))
    put(client, KEYED, keyed_batch([2, 21], None))
    put(client, NANOS, nanos_batch(20, 20))
    for first in range(40, 100, 10):
        put(client, PLAIN, plain_batch(first, 10))


def second_life(client: fl.FlightClient) -> None:
    """A later epoch: what was replayed goes on waiting, more comes, some of it ends nowhere."""
    sequences(client, 6, 8)
    put(client, KEYED, keyed_batch([5, 22], "three"))
    put(client, NANOS, nanos_batch(40, 3))
    north, south = (Source(client, COPY, name) for name in COPIES)
    north.send("a", changes(3), begin=True, transaction="three")
    north.send("b", [(1, 2, {"v": KEEP, "s": "two"})], sequence=3, transaction="three")
    south.send("b", [(None, 50, {"v": 5.0, "s": "five"}), (50, None, {})], sequence=10)
    north.send("a", changes(9), begin=True, transaction="never closed")
    assert describe(client, KEYED)["buffered"]["rows"] > 0


def sequences(client: fl.FlightClient, first: int, last: int) -> None:
    """Batches of the origin ``STATION``."""
    numbered = range(first, last + 1)
    metadata = [{"sequence": number} for number in numbered]
    batches = [event_batch(number) for number in numbered]
    put(client, EVENTS, *batches, origin=STATION, metadata=metadata)


def pack_data(data: Path) -> None:
    """The data directory with its store, nothing of who made it."""

    def cleared(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(asking.ARCHIVE, "w:xz", preset=9) as archive:
        archive.add(data, "data", filter=cleared)


def pack_client(checkout: Path) -> None:
    """The client of that version and what it imports, as Python imports it from an archive."""
    package = checkout / "ingester"
    with zipfile.ZipFile(HERE / "old_client.zip", "w", compresslevel=9) as archive:
        for path in [package / "__init__.py", *sorted((package / "client").rglob("*.py"))]:
            entry = zipfile.ZipInfo(str(path.relative_to(checkout)), (2026, 11, 25, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())


if __name__ == "__main__":
    shutil.rmtree(HERE / "__pycache__", ignore_errors=True)
    main()
