"""``ingester follow``: its options; what it does is in :mod:`.follow`.

That is imported when the command runs, so that ``ingester --help`` does not wait for pyarrow.
"""

from typing import Annotated

import typer

from .command_options import (
    ENDPOINT,
    Config,
    Endpoint,
    Filter,
    Insecure,
    Json,
    Namespace,
    NewColumns,
)


def follow(
    namespace: Namespace,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="One or more.")],
    into: Annotated[
        str,
        typer.Option(
            "--into", help="duckdb:FILE, parquet:FOLDER, or python:package.module:Class of yours."
        ),
    ],
    columns: NewColumns = None,
    filter_: Filter = None,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="beginning|tail|TIME",
            help="Where a copy begins that is not there yet; TIME as 2026-11-21T10:00:00Z. One"
            " that is there goes on.",
        ),
    ] = "beginning",
    anew: Annotated[
        bool, typer.Option("--anew", help="Build copies anew that are there, and then swap them.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="End as soon as the copies have all that there was.")
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            "--name", help="Tells followers apart that keep their state at the daemon (python:)."
        ),
    ] = "",
    store: Annotated[
        str | None, typer.Option("--store", help="URL of the daemon's store; default: it is asked.")
    ] = None,
    http: Annotated[
        str | None, typer.Option("--http", help="HOST:PORT for /metrics and /health.")
    ] = None,
    insecure: Insecure = False,
    config: Config = None,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Keep local copies of tables until SIGINT or SIGTERM: files first, then live.

    DuckDB: rows and the follower's state are in one transaction of the file, which others may open
    read-only in between. Start it again and it goes on, exactly, also after kill -9. Other columns
    or another filter build the copy anew, and readers see the earlier one until it is whole.
    """
    from .follow import FollowArguments, run_follow
    from .metrics_server import MetricsAddress

    asked = FollowArguments(
        namespace=namespace,
        tables=tables,
        into=into,
        columns=columns,
        filter=filter_,
        begin=from_,
        anew=anew,
        once=once,
        name=name,
        store=store,
        config=config,
    )
    at = None if http is None else MetricsAddress("--http", http, insecure)
    run_follow(endpoint, asked, at, json)
