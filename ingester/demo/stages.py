"""The stages, one function each: create the tables, stream, persist, measure, read with Spark.

All but the last use only the client library, and print what they see. pyspark is imported by the
last stage.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ingester.client import Client

from .report import TableResult
from .streaming import NAMESPACE, TARGETS, Load, Streaming, look
from .totals import Totals, disagreements, spark_totals, totals_of

LOOK_AT_PERCENT = (25, 50, 75)
PERSIST_AT_PERCENT = 50


def create_tables(client: Client, schema: pa.Schema) -> None:
    """Create the demo's tables, each with its own partitioning."""
    for target in TARGETS:
        client.create_table(NAMESPACE, target.table, schema, partition_by=[target.partition_by])


def stream(client: Client, flights: pa.Table, load: Load, console: Console) -> Streaming:
    """Stream all flights while querying and persisting; return when all are acknowledged.

    Raises:
        WritesNotSeen: A query lacked rows that had been acknowledged before it.
        ClientError: A batch was refused for good.
    """
    console.print(
        f"streaming into {len(TARGETS)} tables; each has {load.writers} writers that wait for the "
        f"acknowledgement of each batch of {load.batch_rows:,} rows",
        soft_wrap=True,
    )
    streaming = Streaming(client, flights, load)
    columns = (TextColumn("streaming"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with (
            ThreadPoolExecutor(1, "persist") as pool,
            Progress(*columns, console=console) as progress,
        ):
            rows = flights.num_rows * len(TARGETS)
            task = progress.add_task("rows", total=rows)
            looks, persisting = list(LOOK_AT_PERCENT), None
            while streaming.wait_tick():
                done = streaming.acknowledged_rows
                progress.update(task, completed=done)
                if persisting is None and 100 * done >= PERSIST_AT_PERCENT * rows:
                    progress.console.print("  flush to files begins, while writing")
                    persisting = pool.submit(client.persist)
                if looks and 100 * done >= looks[0] * rows:
                    del looks[0]
                    _look_at_all(client, streaming, "while writing", progress.console)
            progress.update(task, completed=streaming.acknowledged_rows)
            _look_at_all(client, streaming, "after writing", progress.console)
            if persisting is not None:
                persisting.result()
    finally:
        streaming.end()
    return streaming


def _look_at_all(client: Client, streaming: Streaming, when: str, console: Console) -> None:
    for table, meter in streaming.meters.items():
        seen = look(client, table, meter)
        console.print(
            f"  query {when}: {table} has {seen.seen:,} rows ({seen.from_buffer:,} from the "
            f"buffer, {seen.from_files:,} from files), {seen.acknowledged_before:,} were "
            "acknowledged before",
            soft_wrap=True,
        )


def compare_at_daemon(client: Client, where: str, source: Totals, schema: pa.Schema) -> list[str]:
    """One sentence per total of the daemon's answer that differs from the source."""
    sentences = []
    for target in TARGETS:
        rows = client.query(NAMESPACE, target.table, schema.names)
        found = totals_of(rows, schema)
        sentences += disagreements(f"{target.table}, daemon ({where}):", found, source)
    return sentences


def persist(client: Client, console: Console) -> None:
    """Flush everything to files and print their number and size."""
    began = time.perf_counter()
    done = {each.table: each.manifest_version for each in client.persist()}
    seconds = time.perf_counter() - began
    sizes = [client.describe(NAMESPACE, target.table).persisted for target in TARGETS]
    console.print(
        f"flushed the rest in {seconds:.1f} s; in all {sum(size.files for size in sizes):,} files, "
        f"{sum(size.bytes for size in sizes) / 1e6:.1f} MB, manifest versions "
        + ", ".join(f"{table} {version}" for table, version in done.items()),
        soft_wrap=True,
    )


def measured(client: Client, streaming: Streaming) -> list[TableResult]:
    """Counts of the daemon and the writers for each table, without Spark's totals."""
    results = []
    for target in TARGETS:
        described = client.describe(NAMESPACE, target.table)
        meter = streaming.meters[target.table]
        results.append(
            TableResult(
                table=target.table,
                partition_by=target.partition_by,
                rows_acknowledged=meter.acknowledged_rows,
                rows_in_buffer=described.buffered.rows,
                rows_in_files=described.persisted.rows,
                files=described.persisted.files,
                rows_per_s=meter.acknowledged_rows / (meter.finished_at - streaming.started_at),
                acknowledged_p50_ms=meter.wait_ms(0.50),
                acknowledged_p99_ms=meter.wait_ms(0.99),
            )
        )
    return results


def totals_by_spark(store_url: str, schema: pa.Schema) -> dict[str, dict[str, int]]:
    """Each table's totals over the columns of ``schema``, computed in a new Spark session."""
    from ingester.spark import read_table
    from ingester.spark.session import local_session

    spark = local_session("ingester demo")
    try:
        expressions = [f"{sql} as `{name}`" for name, sql in spark_totals(schema).items()]
        found = {}
        for target in TARGETS:
            frame = read_table(spark, store_url, NAMESPACE, target.table)
            row = frame.selectExpr(*expressions).first()
            assert row is not None, "a sum without groups is one row"
            found[target.table] = {name: int(value) for name, value in row.asDict().items()}
        return found
    finally:
        spark.stop()
