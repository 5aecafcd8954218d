"""``status``, ``persist``, ``drain`` and ``log-level``: commands for a running daemon."""

from typing import Annotated

import typer

from .command_options import ENDPOINT, Endpoint, Json, SomeNamespace, SomeTable
from .exits import USAGE, CommandFailed


def status(
    seconds: Annotated[
        float | None, typer.Argument(help="Refresh interval of --watch. Default: 2.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Show the daemon's status, alarms first."""
    if watch:
        from .status_watch import watch_status

        watch_status(endpoint, seconds, json)
        return
    if seconds is not None:
        raise CommandFailed("SECONDS needs --watch", USAGE)
    from .status import print_status_of_each

    print_status_of_each(endpoint, json)


def persist(
    namespace: SomeNamespace = None,
    table: SomeTable = None,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait.")] = "60s",
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Flush everything acknowledged so far to object storage, and wait until it is committed."""
    from .daemon_actions import run_persist

    run_persist(endpoint, (namespace, table), timeout, json)


def drain(
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until everything is in files.")
    ] = False,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait.")] = "5m",
    undo: Annotated[bool, typer.Option("--undo", help="Accept writes again.")] = False,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Stop accepting writes and flush everything to files, before the daemon is stopped."""
    from .daemon_actions import run_drain

    run_drain(endpoint, timeout, wait=wait, undo=undo, as_json=json)


def log_level(
    level: Annotated[
        str | None,
        typer.Argument(
            help="debug, info, warning, error, or default to reset. Without it: show the current"
            " levels."
        ),
    ] = None,
    logger: Annotated[
        str | None,
        typer.Option(
            "--logger", help="Only this logger and those below it: ingester.flush, wal, botocore."
        ),
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="Reset after this time, such as 10m."),
    ] = None,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Change the log level at runtime; reset on restart.

    Needs the right admin in all namespaces.
    """
    from .daemon_actions import run_log_level

    run_log_level(endpoint, level, logger, for_, json)
