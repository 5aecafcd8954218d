"""``ingester replicate postgres``: run the replicator until a signal, and say what it did."""

import signal
import sys

from ingester.client import Client
from ingester.postgres.collector import ShapeDiffers
from ingester.postgres.pgoutput import UnknownMessage
from ingester.postgres.replicator import Plan, Replicator
from ingester.postgres.source import NoKey, SourceFailed
from ingester.postgres.types import ValueNotKept

from .exits import FAILED, CommandFailed
from .printing import print_json, print_line


def follow_postgres(
    dsn: str,
    namespace: str,
    tables: list[str],
    names: tuple[str, str, str],
    endpoint: str,
    as_json: bool,
) -> None:
    """Replicate until SIGINT or SIGTERM.

    Args:
        names: of the publication, the slot and the origin (default: the slot's name).
    """
    try:
        import psycopg2  # noqa: F401
    except ImportError as exc:
        raise CommandFailed('psycopg2 is missing: pip install "ingester[postgres]"') from exc
    publication, slot, origin = names
    plan = Plan(dsn, namespace, tables, publication, slot, origin or f"postgres-{slot}")
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, frame: stopped.append(caught))
    with Client(endpoint) as client:
        replicator = Replicator(
            plan,
            client,
            say=lambda text: print(f"ingester: {text}", file=sys.stderr, flush=True),
            stopped=lambda: bool(stopped),
        )
        try:
            replicator.run()
        except (SourceFailed, NoKey, ShapeDiffers, UnknownMessage, ValueNotKept) as exc:
            raise CommandFailed(str(exc), FAILED) from exc
    progress = replicator.progress
    if as_json:
        print_json(progress._asdict())
        return
    print_line(
        f"{progress.transactions} transactions, {progress.changes} changes;"
        f" durable up to {progress.durable}, sent up to {progress.sent}"
    )
