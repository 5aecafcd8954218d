"""``ingester tail`` and ``ingester log-level``: their options; what they do is elsewhere.

Those are imported when a command runs, so that ``ingester --help`` does not wait for pyarrow.
"""

from typing import Annotated

import typer

from .command_options import (
    ENDPOINT,
    Endpoint,
    Filter,
    Json,
    Namespace,
    NewColumns,
    TableName,
)


def tail(
    namespace: Namespace,
    table: TableName,
    columns: NewColumns = None,
    filter_: Filter = None,
    since: Annotated[
        str,
        typer.Option("--since", metavar="now|start", help="start: first the rows that there are."),
    ] = "now",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="End after so many rows.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="table, jsonl or csv; default: table on a terminal."),
    ] = None,
    endpoint: Endpoint = ENDPOINT,
    json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
) -> None:
    """Print new rows as they come, each once, until Ctrl-C.

    A daemon that is away is waited for. Of a table with a primary key a row says in _op whether it
    was put or deleted. Rows are those that the daemon itself has taken.
    """
    from .tail import TailArguments, run_tail

    asked = TailArguments(
        namespace=namespace,
        table=table,
        columns=columns,
        filter=filter_,
        since=since,
        limit=limit,
        format=format_ or ("jsonl" if json else None),
    )
    run_tail(endpoint, asked)


def log_level(
    level: Annotated[
        str | None,
        typer.Argument(help="debug, info, warning, error or default; none: what holds now."),
    ] = None,
    logger: Annotated[
        str | None,
        typer.Option("--logger", help="Only below this name, as ingester.flush, wal, botocore."),
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="Falls back by itself, as after 10m."),
    ] = None,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Set which events the daemon's log has, while it runs; a restart forgets it.

    default takes back what was set. Needs the right admin in all namespaces.
    """
    from .log_level import run_log_level

    run_log_level(endpoint, level, logger, for_, json)
