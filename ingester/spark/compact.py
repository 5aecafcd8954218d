"""``python -m ingester.spark.compact URL NAMESPACE [TABLE]``: compaction as a job.

After each commit a progress line goes to standard error; the report goes to standard output, with
``--json`` as one object per table. Exit code 0: done; 1: groups are left because of conflicts, or a
table failed; 2: wrong arguments, or PySpark is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from ingester.config.secret_values import secret_value
from ingester.secret_texts import remember_options
from ingester.shown_text import escaped
from ingester.spark.compaction.api import compact, rewrite
from ingester.spark.errors import PySparkMissing, require_pyspark
from ingester.spark.options import store_value
from persist.compaction import TARGET_FILE_BYTES, CompactionReport
from persist.manifest import Manifest, ManifestError, list_tables
from persist.parquet.encode import Compression
from persist.store import StoreError, open_store
from persist.store.option_names import EARLIER_FLAG, FLAG, refuse_both


def main(arguments: Sequence[str] | None = None) -> int:
    """Compact or rewrite one table, or all of a namespace; the exit code."""
    asked = asked_of(arguments)
    try:
        require_pyspark()
    except PySparkMissing as exc:
        print(exc, file=sys.stderr)
        return 2
    from pyspark.sql import SparkSession

    try:
        pairs = (one.split("=", 1) for one in asked.store_option or asked.storage_option or ())
        options = {name: store_value(name, secret_value(value)) for name, value in pairs}
        remember_options(options)
        store = open_store(asked.url, **options)
        tables = [asked.table]
        if not asked.table:
            there = list_tables(store)
            tables = sorted(table for space, table in there if space == asked.namespace)
        for table in tables:  # fail before starting a cluster
            Manifest(store, asked.namespace, table).head()
    except (ManifestError, StoreError, ValueError) as exc:
        print(escaped(str(exc)), file=sys.stderr)
        return 1
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit started this process
        # Workers run this Python, not the `python3` on PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName(f"compact {asked.namespace}").getOrCreate()
    failed = False
    try:
        for table in tables:
            try:
                report = job_of(asked)(
                    spark,
                    asked.url,
                    asked.namespace,
                    table,
                    target_file_bytes=asked.target_file_bytes,
                    filter=asked.filter,
                    store_options=options,
                    progress=_progress,
                )
            except (ManifestError, StoreError, ValueError) as exc:
                print(f"{asked.namespace}/{table}: {escaped(str(exc))}", file=sys.stderr)
                failed = True
                continue
            failed = failed or report.left > 0
            print(json.dumps(asdict(report)) if asked.json else escaped(report.text()), flush=True)
    finally:
        spark.stop()
    return 1 if failed else 0


def _progress(report: CompactionReport, done: int, planned: int) -> None:
    print(report.progress_text(done, planned), file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ingester.spark.compact",
        description="Compact or rewrite a table's Parquet files while daemons are running.",
    )
    parser.add_argument("url", help="the store: file:///var/lib/ingester/store, s3://bucket/prefix")
    parser.add_argument("namespace")
    parser.add_argument("table", nargs="?", help="default: all tables of the namespace")
    parser.add_argument(
        "--target-file-bytes", type=_positive, default=TARGET_FILE_BYTES, metavar="BYTES"
    )
    parser.add_argument("--filter", help="only files that may have matching rows")
    for flag, told in (
        (FLAG, "endpoint_url, key, secret, …; for secrets use env:NAME or file:PATH"),
        (EARLIER_FLAG, argparse.SUPPRESS),
    ):
        parser.add_argument(flag, action="append", type=_pair, metavar="NAME=VALUE", help=told)
    parser.add_argument(
        "--rewrite", action="store_true", help="rewrite all files, including large ones"
    )
    parser.add_argument("--sort-by", metavar="A,B", help="with --rewrite: sort by these columns")
    parser.add_argument(
        "--partition-by",
        nargs="*",
        metavar="FIELD",
        help="with --rewrite: day(time), 'bucket(16, host)', …; no FIELD: no partitions",
    )
    parser.add_argument(
        "--compression",
        type=_compression,
        metavar="CODEC",
        help="with --rewrite: zstd:9, snappy, …",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per table")
    return parser


def asked_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, checked. Ends with exit code 2 if they are invalid."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if not asked.rewrite and (asked.sort_by or asked.compression or asked.partition_by is not None):
        parser.error("--sort-by, --partition-by and --compression need --rewrite")
    try:
        refuse_both(FLAG, EARLIER_FLAG, asked.store_option, asked.storage_option)
    except ValueError as exc:
        parser.error(str(exc))
    return asked


def job_of(asked: argparse.Namespace) -> Callable[..., CompactionReport]:
    """The function to call for each table."""
    if not asked.rewrite:
        return compact
    names = asked.sort_by.split(",") if asked.sort_by else None
    return partial(
        rewrite,
        sort_by=names,
        partition_by=asked.partition_by,
        compression=asked.compression or "zstd",
    )


def _compression(text: str) -> str:
    try:
        Compression.parse(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
    return text


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _pair(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return text


if __name__ == "__main__":
    sys.exit(main())
