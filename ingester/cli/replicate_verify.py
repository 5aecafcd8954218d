"""``ingester replicate verify``: compare PostgreSQL's tables with their copies."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from ingester.client import RetryPolicy
from ingester.config.units import parse_duration
from ingester.postgres.options import BadRename, Names
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.states import BadState
from ingester.postgres.verify.differences import RowDifference, TableVerdict, all_equal
from ingester.postgres.verify.verifying import NothingToCompare, VerifyPlan, verify
from ingester.shown_text import escaped

from .connecting import connect
from .exits import DONE, FAILED, UNREACHABLE, USAGE, CommandFailed
from .printing import print_json, print_line, print_table
from .replicate import psycopg2_errors_once, read_dsn

COLUMNS = ("table", "source", "verdict", "source rows", "rows here", "differing", "reason")
_EVERY_S = 0.2


class VerifyArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the command."""

    dsn: str
    namespace: str
    tables: tuple[str, ...]
    origin: str
    renames: tuple[str, ...]
    wait: str
    ignores_set_aside: bool


def run_verify(endpoint: str, arguments: VerifyArguments, as_json: bool) -> NoReturn:
    """Compare, print a line per table and the differing rows, and exit.

    Raises:
        SystemExit: 0 if all tables are equal, else 1.
        CommandFailed: wrong usage; or the source refuses something or is unreachable.
        ClientError
    """
    try:
        import psycopg2
    except ImportError as exc:
        raise CommandFailed(
            'psycopg2 is missing: pip install ".[postgres]" in the folder of the sources'
        ) from exc
    plan = _plan(arguments)
    progress = _VerifyProgress()
    began = time.monotonic()
    with psycopg2_errors_once(), connect(endpoint, RetryPolicy()) as client:
        try:
            verdicts = verify(plan, client, progress.read)
        except NothingToCompare as exc:
            raise CommandFailed(str(exc), USAGE) from exc
        except SourceFailed as exc:
            raise CommandFailed("; ".join((str(exc), *exc.helps)), FAILED) from exc
        except BadState as exc:
            raise CommandFailed(str(exc), FAILED) from exc
        except psycopg2.OperationalError as exc:
            raise CommandFailed(f"PostgreSQL: {exc}", UNREACHABLE) from exc
        finally:
            progress.clear()
    seconds = time.monotonic() - began
    equal = all_equal(verdicts, ignores_set_aside=arguments.ignores_set_aside)
    if as_json:
        print_json({"equal": equal, "seconds": round(seconds, 3), "tables": verdicts})
    else:
        _print(verdicts)
        rows = sum(each.source_rows or 0 for each in verdicts)
        print_line(
            f"compared {rows:,} rows of {len(verdicts):,} tables in {seconds:.1f} s"
            f" ({rows / max(seconds, 1e-3):,.0f} rows/s)",
            sys.stderr,
        )
    raise SystemExit(DONE if equal else FAILED)


def _plan(arguments: VerifyArguments) -> VerifyPlan:
    renames = {}
    for text in arguments.renames:
        source, equals, name = text.rpartition("=")
        if not (source and equals and name):
            raise CommandFailed(f"--rename {text!r} is not TABLE=NAME", USAGE)
        renames[source] = name
    try:
        names = Names(renames)
    except BadRename as exc:
        raise CommandFailed(f"--rename: {exc}", USAGE) from exc
    try:
        patience_s = parse_duration(arguments.wait)
    except ValueError as exc:
        raise CommandFailed(f"--wait: {exc}", USAGE) from exc
    return VerifyPlan(
        read_dsn(arguments.dsn),
        arguments.namespace,
        arguments.origin,
        names,
        arguments.tables,
        patience_s,
    )


def _print(verdicts: Sequence[TableVerdict]) -> None:
    print_table(COLUMNS, [_row(verdict) for verdict in verdicts])
    for verdict in verdicts:
        for row in verdict.rows:
            for line in _lines(verdict.table, row):
                print_line(line)
        named, all_ = len(verdict.rows), verdict.differing
        if verdict.more or all_ > named:
            print_line(
                f"{verdict.table}: {_count(verdict)} rows differ; the first {named} are listed"
            )


def _row(verdict: TableVerdict) -> tuple[object, ...]:
    why = "; ".join(text for text in (verdict.reason, *verdict.helps) if text)
    return (
        verdict.table,
        verdict.source or None,
        verdict.verdict.replace("_", " "),
        verdict.source_rows,
        verdict.copy_rows,
        _count(verdict),
        why or None,
    )


def _count(verdict: TableVerdict) -> str:
    sure = f"{verdict.differing:,}{'+' if verdict.more else ''}"
    return f"{sure}, {verdict.unsettled:,} unsettled" if verdict.unsettled else sure


def _lines(table: str, row: RowDifference) -> list[str]:
    key = ", ".join(f"{name}={_value(value)}" for name, value in row.key.items())
    where = f"{table} {key}"
    if row.fault == "missing":
        return [f"{where}: missing here"]
    if row.fault == "extra":
        return [f"{where}: missing at the source"]
    if row.fault == "repeated":
        return [f"{where}: repeated here"]
    return [
        f"{where}: {each.column} is {_value(each.source)} at the source, {_value(each.copy)} here"
        for each in row.columns
    ]


def _value(value: str | None) -> str:
    return "null" if value is None else repr(value)


class _VerifyProgress:
    """A progress line on standard error, if that is a terminal."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._shown_at = 0.0

    def read(self, what: str, rows: int) -> None:
        """Show how many rows were read."""
        if self._shows and time.monotonic() - self._shown_at >= _EVERY_S:
            self._shown_at = time.monotonic()
            print(f"\r\x1b[K{escaped(what)}: {rows:,} rows", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._shown_at:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
