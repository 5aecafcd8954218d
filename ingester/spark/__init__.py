"""Tables of an ingester as Spark DataFrames.

    from ingester.spark import read_table

    flights = read_table(spark, "file:///var/lib/ingester/store", "demo", "flights")
    now = read_table(spark, url, "demo", "flights", endpoint="grpc://127.0.0.1:8082")

    register(spark)
    spark.read.format("ingester").load(f"{url}/demo/flights")         # no jar
    spark.readStream.format("ingester").load(f"{url}/demo/flights")   # rows as versions add them

Without an endpoint: exactly the files of one manifest version, read by Spark itself. With one (or
several): also the rows that the daemons have acknowledged and not yet persisted, each row once.

    reading        read_table: which version, which reader, which rows
    columns        the columns of a table, of an answer, and what carries them
    types          Arrow types and Spark types        nanoseconds    what Spark cannot hold
    native         files through Spark's reader       arrow_scan     files through pyarrow, no jar
    tail           buffered rows, from the daemons    merging        by primary key
    source         format("ingester")                 options        what it is told
    source_reader, source_stream, source_rows         batch, stream, what both give
    stream_offsets, stream_limits, new_columns        where a stream is, how far, and where it stops
    said_filter, pushed_filters, pruning              what need not be read
    append_writer, keyed_writer                       format("ingester") to write
    sink_files, staged_files                          a task's rows until they are committed
    sink_columns   a frame's columns in a table       spark_commits  what a driver commits
    compaction     compact, rewrite, expire           compact        the first as a job
    compaction_plan, compaction_run, compaction_task  which files, in which commits, one of them
    registering    a session learns the format
    connector      S3A, if the session has it         versions       what PySparks differ in
    session        a local session for a demo         errors

PySpark comes with ``pip install 'ingester[spark]'``. Nothing here imports trio or the daemon, so
executors need this distribution and not its servers.
"""

from __future__ import annotations

from ingester.spark.compaction.api import compact, expire, rewrite
from ingester.spark.compaction.report import CompactionReport
from ingester.spark.errors import (
    PySparkMissing,
    ReaderUnsuitable,
    StreamUnsuitable,
    TailStale,
    TailUnavailable,
    WriteRefused,
)
from ingester.spark.read.read_table import read_table
from ingester.spark.register import register

__all__ = [
    "CompactionReport",
    "PySparkMissing",
    "ReaderUnsuitable",
    "StreamUnsuitable",
    "TailStale",
    "TailUnavailable",
    "WriteRefused",
    "compact",
    "expire",
    "read_table",
    "register",
    "rewrite",
]
