"""``ingester replicate postgres``: read the options, and run the replicator until a signal."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ingester.client import RetryPolicy
from ingester.config.secret_values import secret_value
from ingester.postgres.names import BadRename, Names, split_name
from ingester.postgres.options import BadOption, Options, parse_pairs, parse_policies
from ingester.postgres.replicator import Replicator
from ingester.postgres.reporting import ReportSender, report_of
from ingester.postgres.resync import request_resync
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.states import BadState

from .connecting import connect, connection_options, dialled
from .exits import FAILED, USAGE, CommandFailed
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
        message = 'psycopg2 is missing: pip install "ingester[postgres]"'
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
        )
        Names(options.renames)
        for name in options.tables:
            split_name(name)
    except (BadOption, BadRename) as exc:
        raise CommandFailed(str(exc), USAGE) from exc
    if endpoint is None:
        from .replicate_check import check_postgres

        check_postgres(options, as_json)
        return
    follow_postgres(options, endpoint, as_json, stopped)


def follow_postgres(options: Options, endpoint: str, as_json: bool, stopped: Sequence[int]) -> None:
    """Replicate until a signal was caught."""
    sending = ReportSender(dialled(endpoint), say, options=connection_options())
    with connect(endpoint, RetryPolicy()) as client, sending as sender:
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
