"""``ingester replicate postgres``: run the replicator until a signal, or print a dry run.

The dry run, ``--check``, prints what could be followed and changes nothing.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import msgspec

from ingester.client import RetryPolicy
from ingester.config.secret_values import secret_value
from ingester.postgres.checking import Check, CheckedTable, check
from ingester.postgres.conditions import Hindrance
from ingester.postgres.options import (
    BadOption,
    BadRename,
    Names,
    Options,
    parse_pairs,
    parse_policies,
    split_name,
)
from ingester.postgres.replicator import Replicator
from ingester.postgres.reporting import ReportSender, report_of
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.starting import request_resync
from ingester.postgres.states import BadState

from .connecting import connect, connection_options, dialled
from .exits import FAILED, UNREACHABLE, USAGE, CommandFailed
from .printing import print_json, print_line, say


def read_dsn(given: str) -> str:
    """The DSN, possibly from a variable or a file.

    Raises:
        CommandFailed: it cannot be read.
    """
    try:
        return secret_value(given)
    except ValueError as exc:
        raise CommandFailed(f"DSN: {exc}", USAGE) from exc


@contextmanager
def psycopg2_errors_once() -> Iterator[None]:
    """Keep an error that psycopg2 prints and raises off standard error.

    If a server ends a COPY and the connection, psycopg2 2.9 creates a second error while the first
    is set, and prints the ``SystemError`` that this causes. No option turns it off. A command owns
    its process and may set ``sys.excepthook``, which Python has for this; everything else is shown
    as before.
    """
    import psycopg2

    shown = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if kind is not SystemError or not isinstance(value.__cause__, psycopg2.Error):
            shown(kind, value, trace)

    sys.excepthook = show
    try:
        yield
    finally:
        sys.excepthook = shown


def run_postgres(
    dsn: str,
    namespace: str,
    given: Mapping[str, Any],
    endpoint: str | None,
    as_json: bool,
    stopped: Sequence[int],
) -> None:
    """Run the replicator, or a dry run.

    Args:
        given: The options by name.
        endpoint: The daemon; None for a dry run.
        as_json: Print the result as JSON.
        stopped: The signals that were caught: not empty once the replicator should end.
    """
    try:
        import psycopg2  # noqa: F401
    except ImportError as exc:
        message = 'psycopg2 is missing: pip install ".[postgres]" in the folder of the sources'
        raise CommandFailed(message, FAILED) from exc
    if given["on_removed"] not in ("keep", "empty"):
        raise CommandFailed(f"--on-removed {given['on_removed']}: keep or empty", USAGE)
    try:
        options = Options(
            dsn=read_dsn(dsn),
            namespace=namespace,
            tables=tuple(name.strip() for name in given["tables"].split(",") if name.strip()),
            publication=given["publication"],
            slot=given["slot"],
            origin=given["origin"],
            renames=parse_pairs("--rename", given["rename"]),
            policies=parse_policies(given["values"]),
            on_removed=given["on_removed"],
            resync=frozenset(given["resync"]),
            resync_all=given["resync_all"],
            resume=given["resume"],
            ack=given["ack"],
        )
        Names(options.renames)
        for name in options.tables:
            split_name(name)
    except (BadOption, BadRename) as exc:
        raise CommandFailed(str(exc), USAGE) from exc
    if endpoint is None:
        check_postgres(options, as_json)
        return
    follow_postgres(options, endpoint, as_json, stopped)


def follow_postgres(options: Options, endpoint: str, as_json: bool, stopped: Sequence[int]) -> None:
    """Replicate until a signal was caught."""
    sending = ReportSender(dialled(endpoint), say, options=connection_options())
    with psycopg2_errors_once(), connect(endpoint, RetryPolicy()) as client, sending as sender:
        try:
            if options.resync and (asked := request_resync(options, client)):
                print_line(asked)
                return
            replicator = Replicator(
                options,
                client,
                say=say,
                stopped=lambda: bool(stopped),
                report=lambda each: sender.tell(lambda: report_of(each)),
            )
            try:
                replicator.run()
            except BaseException as exc:
                why = str(exc) or type(exc).__name__
                sender.tell(lambda: report_of(replicator, ended=why), last=True)
                raise
            sender.tell(lambda: report_of(replicator, ended=""), last=True)
        except SourceFailed as exc:
            raise CommandFailed(exc.with_help, FAILED) from exc
        except BadState as exc:
            raise CommandFailed(str(exc), FAILED) from exc
    progress = replicator.progress
    if as_json:
        print_json(msgspec.to_builtins(progress))
        return
    print_line(
        f"copied {progress.copied:,} tables and applied {progress.changes:,} changes in"
        f" {progress.transactions:,} transactions; a restart resumes from there"
    )


def check_postgres(options: Options, as_json: bool) -> None:
    """Print the result of a dry run.

    Raises:
        CommandFailed: something cannot be followed (1), or the server is unreachable (3).
    """
    import psycopg2

    try:
        names = Names(options.renames)
        found = check(options.dsn, options.publication, options.slot, options.tables, names)
    except BadRename as exc:
        raise CommandFailed(str(exc), USAGE) from exc
    except SourceFailed as exc:
        raise CommandFailed(exc.with_help, FAILED) from exc
    except psycopg2.OperationalError as exc:
        raise CommandFailed(str(exc), UNREACHABLE) from exc
    if as_json:
        print_json(found)
    else:
        for line in _lines(found):
            print_line(line)
    if not found.is_fine:
        raise CommandFailed(_verdict(found), FAILED)


def _lines(found: Check) -> Iterator[str]:
    server = found.server
    yield f"source       {found.source}"
    major, minor = divmod(server.version_num, 10_000)
    yield (
        f"server       PostgreSQL {major}.{minor}, wal_level {server.wal_level};"
        f" free: {server.slots_free} slots, {server.senders_free} WAL senders"
    )
    reads = "may" if server.may_replicate else "may not"
    sees = "bypasses row security" if server.bypasses_rls else "is subject to row security"
    yield f"role         {server.role}: {reads} read the log; {sees}"
    yield f"publication  {found.publication.name}: {_publication(found)}"
    yield f"slot         {found.slot.name}: {_slot(found)}"
    for problem in found.problems:
        yield ""
        yield from _hindered("nothing can be followed", problem)
    for table in found.tables:
        yield ""
        yield from _table(table)
    if found.would_run:
        yield ""
        yield "a start would run"
        yield from (f"    {command}" for command in found.would_run)
    if found.is_fine:
        yield ""
        yield f"all {len(found.tables)} tables can be followed"


def _publication(found: Check) -> str:
    facts = found.publication
    if not facts.exists:
        return "missing"
    tables = "all tables" if facts.all_tables else "some tables"
    made = "created by a start" if facts.ours else "created by somebody else, used unchanged"
    root = ", partitions as their root table" if facts.via_root else ""
    return f"{made}; {tables}{root}"


def _slot(found: Check) -> str:
    slot = found.slot
    if not slot.exists:
        return "missing: a start creates it"
    reader = f", read by process {slot.active_pid}" if slot.active_pid else ", no reader"
    return f"keeps {slot.held_bytes:,} B of the server's log{reader}"


def _table(table: CheckedTable) -> Iterator[str]:
    name = f"{table.source} as {table.table}"
    if table.can_be_followed:
        yield f"{name}: can be followed"
    else:
        yield from _hindered(f"{name}: cannot be followed", Hindrance(table.reason, table.helps))
    yield from (f"    note: {note}" for note in table.notes)
    if table.breaks:
        yield f"    AT THE SOURCE: {table.breaks}"


def _hindered(what: str, found: Hindrance) -> Iterator[str]:
    yield f"{what}: {found.reason}"
    yield from (f"    helps: {each}" for each in found.helps)


def _verdict(found: Check) -> str:
    not_followed = sum(not table.can_be_followed for table in found.tables)
    if found.problems:
        return f"nothing can be followed: {'; '.join(each.reason for each in found.problems)}"
    return f"{not_followed} of {len(found.tables)} tables cannot be followed"
