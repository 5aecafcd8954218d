"""Makes the fixture of a release, with that release's code.

    python -m tests.upgrades.make [CHECKOUT]

``CHECKOUT`` is a folder with the release and its environment in ``.venv``; the default is this
checkout. Its daemon writes, is killed, starts again, writes more and is killed once more; its
Spark compacts, appends and pushes. Then it is started on copies of the result, and answers what
the tests will ask. A daemon without a disk writes to the same store. An existing fixture is
replaced only with ``--again``, while its release is not published.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow.flight as fl

from tests.drivers.daemon import ROOT, Daemon, Launch
from tests.drivers.waiting import until
from tests.drivers.wire import create, describe, query
from tests.upgrades import asking
from tests.upgrades.fixture import Fixture
from tests.upgrades.lives import (
    before_all,
    first_life,
    left_in_the_log,
    many_versions,
    second_life,
    sequences,
    shipped,
)
from tests.upgrades.written import (
    DISKLESS,
    EXPIRED,
    KEYED,
    PLAIN,
    PLAIN_SCHEMA,
    PUSHED,
    STORED,
    VERSIONS,
)

SPARK = """
import sys
from pyspark.sql import functions as F
from ingester.pushes.config import push_config
from ingester.spark import compact, register, rewrite
from ingester.spark.push import push
from ingester.spark.session import local_session
from persist.store import open_store
from persist.switching import roll_back

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
config = push_config({"regions": {"here": {"url": url}}, "pushes": {"order": "at_once"}})
for name in ("one", "two"):
    assert push(frame, "new", "pushed", push_id=name, config=config, expected_rows=6).live
roll_back(open_store(url), "new", "pushed")
spark.stop()
"""

CLIENT = """
import sys
import ingester.client.aio, ingester.client.filter_parser, ingester.client.sync_stream
import ingester.client.trio_client
packages = ("ingester", "persist", "wal")
print(*(module.__file__ for name, module in list(sys.modules.items())
        if name.partition(".")[0] in packages), sep="\\n")
"""
"""Prints the files that the client consists of."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.upgrades.make")
    parser.add_argument("checkout", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    checkout = asked.checkout.resolve()
    python = checkout / ".venv" / "bin" / "python"
    Launch.root, Launch.command = checkout, [str(python), "-m", "ingester", "serve"]

    def command(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        line = [str(python), "-m", "ingester", *arguments]
        return subprocess.run(line, cwd=checkout, capture_output=True, text=True)

    fixture = Fixture(command(["--version"]).stdout.split()[-1])
    if fixture.archive.exists() and not asked.again:
        sys.exit(
            f"{fixture.folder} is there: a release's data is made once; --again makes it anew"
            " while that release is not out"
        )
    fixture.folder.mkdir(parents=True, exist_ok=True)
    make(fixture, command, checkout, python)
    for path in sorted(fixture.folder.iterdir()):
        print(f"{path.relative_to(Path.cwd())}  {path.stat().st_size:,} bytes")


def make(fixture: Fixture, command: asking.Command, checkout: Path, python: Path) -> None:
    """Write, ask, and pack."""
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch, "written", "data")
        write(data, command, checkout, python)
        fixture.pack(data)
        copies = [
            fixture.unpacked(Path(scratch, name))
            for name in ("looked-at", "started", "adopted", "lost")
        ]
        fixture.keep_answers(
            {
                "settings": asking.of_the_settings(command),
                "log": asking.of_the_log(command, copies[0]),
                "store": asking.of_the_store(command, copies[0]),
                "daemon": asking.of_a_life(copies[1]),
                "adopted": asking.of_an_adoption(command, copies[2]),
                "lost": asking.of_lost_disks(command, copies[3]),
            }
        )
    pack_client(fixture, checkout, python)


def write(data: Path, command: asking.Command, checkout: Path, python: Path) -> None:
    """A life that ends cleanly, one that flushes much, Spark's part, and one that is killed."""
    settings = {**asking.SETTINGS, "wal__segment_bytes": "16KiB"}
    before_all(data, settings)
    clean_up(data / "store", command)
    with Daemon.start(data, **settings) as daemon:
        with fl.connect(daemon.flight) as client:
            first_life(client)
            sequences(client, 4, 4)  # waits under the first partition spec
            spark = [str(python), "-c", SPARK, f"file://{data}/store", f"{data}.checkpoints"]
            environment = {**os.environ, "PYSPARK_PYTHON": str(python)}
            subprocess.run(spark, cwd=checkout, check=True, env=environment)
            last = 20
            until(lambda: query(client, PLAIN).num_rows == last + 6, "the daemon to see Spark's")
            counts = VERSIONS[1]
            until(lambda: describe(client, PUSHED)["table_version"] == counts, "the way back")
            many_versions(client, data)
            left_in_the_log(client)
            create(client, STORED, PLAIN_SCHEMA, ack="store")
            shipped(client, STORED, 1, 3)
        daemon.kill()
        with daemon.again() as again:
            with fl.connect(again.flight) as client:
                second_life(client)
                shipped(client, STORED, 3, 5)
                assert describe(client, KEYED)["buffered"]["rows"] > 0
                assert query(client, PUSHED, scope="buffered").num_rows == 3
            again.kill()
    with Daemon.start(data.with_name("scratch"), **asking.without_a_disk(data)) as diskless:
        with fl.connect(diskless.flight) as client:
            shipped(client, DISKLESS, 1, 3)
        diskless.kill()


def clean_up(store: Path, command: asking.Command) -> None:
    """Delete an old file that was never committed."""
    orphan = store.joinpath(*EXPIRED, "v1", "data", "orphan.parquet")
    orphan.write_bytes(b"of a process that ended")
    os.utime(orphan, (0, 0))
    done = command(["manifest", "gc", f"file://{store}", *EXPIRED])
    assert not orphan.exists(), (done.stdout, done.stderr)


def pack_client(fixture: Fixture, checkout: Path, python: Path) -> None:
    """The client of that release and its imports, as an archive that Python can import from."""
    listed = subprocess.run(
        [str(python), "-c", CLIENT], cwd=checkout, check=True, capture_output=True, text=True
    )
    with zipfile.ZipFile(fixture.client, "w", compresslevel=9) as archive:
        for path in sorted({Path(line) for line in listed.stdout.split()}):
            entry = zipfile.ZipInfo(str(path.relative_to(checkout)), (2026, 11, 25, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())


if __name__ == "__main__":
    main()
