"""A stateful streaming job: events are deduplicated and counted by minute into another table.

    python deploy/examples/deduplicated_windows.py STORE NAMESPACE EVENTS WINDOWS CHECKPOINT

Reads new versions of the table EVENTS (time, id, host, value), drops events whose id was seen
within the watermark, sums them by minute and host, and adds each completed minute to the table
WINDOWS (minute, host, events, value). Each minute is written once, also after a kill and restart.
With --once it stops at the present version. (Before Spark 4.2 batches have no limit: leave that
option out.)

State is in RocksDB with Spark's checkpoint format 2: each attempt to write a version of a state
store has its own id, and the commit log says which one counts. --show prints the attempts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from ingester.spark import register

WATERMARK = "5 minutes"
UNIQUE_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Few state partitions suffice for a job of this size; fixed for the life of a checkpoint.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


def windows(events: DataFrame) -> DataFrame:
    """Events by minute and host, each id once, for a stream or a batch."""
    if events.isStreaming:
        once = events.withWatermark("time", WATERMARK).dropDuplicatesWithinWatermark(["id"])
    else:
        once = events.dropDuplicates(["id"])
    by_minute = once.groupBy(F.window("time", "1 minute"), "host")
    sums = by_minute.agg(F.count("*").alias("events"), F.sum("value").alias("value"))
    return sums.select(F.col("window.start").alias("minute"), "host", "events", "value")


def start(
    spark: SparkSession, source: str, target: str, checkpoint: str, *, once: bool
) -> StreamingQuery:
    """The running job."""
    reader = spark.readStream.format("ingester").option("max_files_per_trigger", "2")
    events = reader.option("columns", "time,id,host,value").load(source)
    writer = windows(events).writeStream.format("ingester").outputMode("append")
    trigger = {"availableNow": True} if once else {"processingTime": "1 second"}
    return (
        writer.options(path=target, checkpointLocation=checkpoint)
        .trigger(**trigger)  # type: ignore[arg-type]
        .start()
    )


def state_versions(checkpoint: Path) -> list[dict[str, object]]:
    """The files of a checkpoint's state stores by version and unique id; ``counts``: committed."""
    counted: set[str] = set()
    for commit in (checkpoint / "commits").glob("[0-9]*"):
        counted |= set(UNIQUE_ID.findall(commit.read_text()))
    found: list[dict[str, object]] = []
    for file in sorted((checkpoint / "state").rglob("*_*.*")):
        match = re.fullmatch(r"(\d+)_([0-9a-f-]{36})\.(changelog|zip)", file.name)
        if match is not None:
            version, uid, kind = match.groups()
            place = file.parent.relative_to(checkpoint / "state").as_posix()
            found.append(
                {
                    "store": place,
                    "version": int(version),
                    "uid": uid,
                    "kind": kind,
                    "counts": uid in counted,
                }
            )
    return found


def main() -> None:
    """Run the job, or show the state of one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name in ("store", "namespace", "events", "windows", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--once", action="store_true", help="stop at the present version")
    parser.add_argument("--show", action="store_true", help="print the state's versions and end")
    asked = parser.parse_args()
    if asked.show:
        for line in state_versions(Path(asked.checkpoint)):
            print(json.dumps(line))
        return
    # Spark's workers use this Python instead of the python3 on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("deduplicated windows")
    for name, value in STATE.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    source, target = (
        f"{asked.store}/{asked.namespace}/{table}" for table in (asked.events, asked.windows)
    )
    start(spark, source, target, asked.checkpoint, once=asked.once).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
