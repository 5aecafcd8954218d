"""The first hour with the ingester and Spark. Run it as a whole, or paste it part by part.

    pip install '.[spark]'        # Python 3.11 to 3.13; Spark needs Java 17 or 21
    python deploy/examples/first_hour.py

All data is in a temporary folder, which is removed at the end.
"""

import contextlib
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from ingester.client import Client
from ingester.spark import compact, read_table, register
from ingester.spark.session import local_session

home = Path(tempfile.mkdtemp(prefix="first-hour-"))
store = f"file://{home}/store"

# %% 1. A daemon. Its first line of output has its address.
daemon = subprocess.Popen(
    [sys.executable, "-m", "ingester", "serve", "--data-dir", str(home / "data")],
    env=os.environ | {"INGESTER_STORE": store, "INGESTER_FLIGHT__LISTEN": "127.0.0.1:0",
                      "INGESTER_HTTP__LISTEN": "127.0.0.1:0"},
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
)  # fmt: skip
assert daemon.stdout is not None
endpoint = json.loads(daemon.stdout.readline())["flight"]
print("1. a daemon at", endpoint)

# %% 2. Rows: on disk and visible to every query when `write` returns.
start = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
readings = pa.table(
    {
        "time": [start + dt.timedelta(minutes=n) for n in range(5000)],
        "sensor": [f"s{n % 7}" for n in range(5000)],
        "celsius": [20 + n % 13 / 10 for n in range(5000)],
    }
)
client = Client(endpoint)
client.write("home", "readings", readings)
print("2. written and read back:", client.query("home", "readings").num_rows, "rows")

# %% 3. Files: sorted Parquet, a folder per day, listed by a manifest. Flushes are automatic.
client.persist("home", "readings")
print("3. files:", len(list((home / "store").rglob("*.parquet"))))

# %% 4. Spark reads exactly the files of one version, and rows that are not in files yet.
client.write("home", "readings", readings.slice(0, 100))
spark = local_session("first hour")
files = read_table(spark, store, "home", "readings", filter="time >= '2026-11-23'")
everything = read_table(spark, store, "home", "readings", endpoint=endpoint)
print("4. from the 23rd on:", files.count(), "rows; with buffered rows:", everything.count())
everything.groupBy("sensor").avg("celsius").orderBy("sensor").show(3)

# %% 5. The same as a data source, also in SQL. It needs no connector, not even for S3.
register(spark)
spark.sql(
    "CREATE TEMPORARY VIEW readings USING ingester"
    f" OPTIONS (url '{store}', namespace 'home', table 'readings')"
)
spark.sql("SELECT time_day, count(*) AS n FROM readings GROUP BY time_day ORDER BY 1").show()

# %% 6. Spark writes to the same table, exactly once, while the daemon runs.
warmer = read_table(spark, store, "home", "readings").selectExpr(
    "time", "sensor", "celsius + 1 AS celsius"
)
warmer.write.format("ingester").mode("append").save(f"{store}/home/readings")
print("6. after Spark's write:", read_table(spark, store, "home", "readings").count(), "rows")

# %% 7. A stream of the rows that versions add, once each, across restarts.
stream = spark.readStream.format("ingester").load(f"{store}/home/readings")
query = (
    stream.writeStream.format("memory")
    .queryName("arrived")
    .option("checkpointLocation", str(home / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print("7. streamed:", spark.table("arrived").count(), "rows")

# %% 8. Compaction of small files while the daemon runs.
client.persist("home", "readings")
report = compact(spark, store, "home", "readings")
print("8. compaction:", report.files_before, "files became", report.files_after)

# %% The end. On SIGTERM the daemon flushes everything.
spark.stop()
client.close()
daemon.terminate()
daemon.wait(60)
with contextlib.suppress(OSError):
    subprocess.run(["rm", "-rf", str(home)], check=False)
