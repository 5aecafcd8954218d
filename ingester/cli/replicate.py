"""``ingester replicate postgres``: run the replicator until a signal, and say what it did."""

import signal

import msgspec

from ingester.client import RetryPolicy
from ingester.postgres.connection import SourceFailed
from ingester.postgres.options import Options
from ingester.postgres.replicator import Replicator
from ingester.postgres.report_sender import ReportSender
from ingester.postgres.reporting import report_of
from ingester.postgres.resyncing import asked_another
from ingester.postgres.states import BadState

from .connecting import connect, connection_options, dialled
from .exits import FAILED, CommandFailed
from .printing import print_json, print_line, say


def follow_postgres(options: Options, endpoint: str, as_json: bool) -> None:
    """Replicate until SIGINT or SIGTERM."""
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, frame: stopped.append(caught))
    sending = ReportSender(dialled(endpoint), say, options=connection_options())
    with connect(endpoint, RetryPolicy()) as client, sending as sender:
        try:
            if options.resync and (asked := asked_another(options, client)):
                print_line(asked)
                return
            replicator = Replicator(
                options,
                client,
                say=say,
                stopped=lambda: bool(stopped),
                told=lambda each: sender.tell(lambda: report_of(each)),
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
        f" {progress.transactions:,} transactions; start it again and it goes on"
    )
