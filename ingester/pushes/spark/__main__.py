"""``python -m ingester.spark.push --config FILE NAMESPACE TABLE …``: a job for ``spark-submit``.

Progress goes to standard error, the result to standard output, with ``--json`` as one object. Exit
codes: 0 if the generation is live in every region, 1 if the push was refused or has ended
otherwise, 2 for invalid arguments or an invalid configuration.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ingester.pushes.config import (
    HookConfigError,
    PushConfig,
    PushConfigError,
    read_push_config,
)
from ingester.pushes.spark.api import print_progress, push
from ingester.pushes.spark.result import PushFailed, PushRefused, PushResult
from ingester.pushes.store import PushDamaged
from ingester.shown_text import escaped, escaped_lines
from ingester.spark.errors import PySparkMissing, require_pyspark
from persist.compaction import TARGET_FILE_BYTES
from persist.manifest import ManifestError
from persist.store import StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLE = re.compile(r"([^/@]+)/([^/@]+)(?:@([0-9]+))?")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job, and return the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        config = read_push_config(asked.config)
        require_pyspark()
    except (PushConfigError, HookConfigError, PySparkMissing) as exc:
        print(escaped(str(exc)), file=sys.stderr)
        return 2
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started it
        # Workers run this Python, not the `python3` on PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    name = f"push {asked.namespace}/{asked.table}"
    spark = SparkSession.builder.appName(name).getOrCreate()
    try:
        result = _pushed(spark, config, asked)
    except PushFailed as exc:
        result = exc.result
    except HookConfigError as exc:
        print(escaped(str(exc)), file=sys.stderr)
        return 2
    except (
        PushRefused,
        PushDamaged,
        ManifestError,
        StoreError,
        PySparkException,
        ValueError,
    ) as exc:
        print(f"{asked.namespace}/{asked.table}: {escaped(str(exc))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"{asked.namespace}/{asked.table}: interrupted. A controller continues the push if it"
            " was started, or this command with its --push-id; `ingester pushes abort` ends it",
            file=sys.stderr,
        )
        return 130
    finally:
        spark.stop()
    for counts in result.hooks:
        print(escaped(counts.text()), file=sys.stderr, flush=True)
    print(json.dumps(as_json(result)) if asked.json else escaped_lines(result.text()), flush=True)
    return 0 if result.live else 1


def as_json(result: PushResult) -> dict[str, object]:
    """Return a result as JSON values."""
    regions = [{**each._asdict(), "status": each.status.value} for each in result.regions]
    return {
        "push_id": result.push_id,
        "namespace": result.namespace,
        "table": result.table,
        "status": result.status.value,
        "reason": result.reason,
        "regions": regions,
        "rows": result.rows,
        "files": result.files,
        "bytes": result.bytes,
        "seconds": result.seconds,
        "hooks": [msgspec.to_builtins(each) for each in result.hooks],
    }


def _pushed(spark: SparkSession, config: PushConfig, asked: argparse.Namespace) -> PushResult:
    return push(
        _frame(spark, config, asked),
        asked.namespace,
        asked.table,
        config=config,
        regions=asked.region or None,
        push_id=asked.push_id,
        params=dict(pair.split("=", 1) for pair in asked.param),
        replay_since=asked.replay_since,
        primary_key=_names(asked.primary_key),
        partition_by=asked.partition_by,
        sort_by=_names(asked.sort_by),
        lead=not asked.no_lead,
        defer_swap=asked.defer_swap,
        expected_rows=asked.expected_rows,
        target_file_bytes=asked.target_file_bytes,
        progress=print_progress,
    )


def _frame(spark: SparkSession, config: PushConfig, asked: argparse.Namespace) -> DataFrame:
    from ingester.spark.read.read_table import read_table
    from ingester.spark.session import register

    if asked.parquet is not None:
        return spark.read.parquet(*asked.parquet)
    if asked.from_table is not None:
        namespace, table, version = asked.from_table
        first = config.regions[0]
        return read_table(
            spark,
            first.url,
            namespace,
            table,
            table_version=version,
            store_options=first.store_options,
        )
    register(spark)  # the query may read tables
    path = Path(asked.sql)
    return spark.sql(path.read_text() if asked.sql.endswith(".sql") else asked.sql)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ingester.spark.push",
        description="Replace a table atomically, region by region, with rows of a query or files.",
    )
    parser.add_argument(
        "--config", required=True, metavar="FILE", help="TOML file with regions, hooks and rules"
    )
    parser.add_argument("namespace")
    parser.add_argument("table")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--parquet", nargs="+", metavar="PATH", help="Parquet files or folders")
    source.add_argument("--sql", metavar="QUERY", help="query, or a file ending in .sql")
    source.add_argument(
        "--table",
        dest="from_table",
        type=_table,
        metavar="NAMESPACE/TABLE[@VERSION]",
        help="table in the first region",
    )
    parser.add_argument("--push-id", help="id of the push; the same id resumes it")
    parser.add_argument("--region", action="append", help="only this region; repeatable")
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        type=_pair,
        metavar="NAME=VALUE",
        help="parameter for hooks; repeatable",
    )
    parser.add_argument(
        "--replay-since",
        metavar="WHEN",
        help="also copy rows streamed since: start, a time, or a manifest version",
    )
    parser.add_argument("--primary-key", metavar="A,B", help="for a new table, like the next two")
    parser.add_argument("--partition-by", nargs="*", metavar="FIELD", help="such as day(time)")
    parser.add_argument("--sort-by", metavar="A,B", help="sort order of the files")
    parser.add_argument("--no-lead", action="store_true", help="let an `ingester controller` lead")
    parser.add_argument(
        "--defer-swap",
        action="store_true",
        help="switch no region until `ingester pushes release`",
    )
    parser.add_argument(
        "--expected-rows", type=_number, metavar="N", help="abort if the number of rows differs"
    )
    parser.add_argument(
        "--target-file-bytes",
        type=_positive,
        default=TARGET_FILE_BYTES,
        metavar="BYTES",
        help="size in memory of a file",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    return parser


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _table(text: str) -> tuple[str, str, int | None]:
    match = _TABLE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAMESPACE/TABLE or NAMESPACE/TABLE@VERSION"
        )
    return match[1], match[2], int(match[3]) if match[3] else None


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _positive(text: str) -> int:
    if (number := _number(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is below 1")
    return number


def _pair(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return text


if __name__ == "__main__":
    sys.exit(main())
