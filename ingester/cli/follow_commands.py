"""The options of ``ingester follow``.

:mod:`.follow` is imported when the command runs, so ``ingester --help`` does not import pyarrow.
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
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="One or more tables.")],
    into: Annotated[
        str,
        typer.Option("--into", help="duckdb:FILE, parquet:FOLDER, or python:package.module:Class."),
    ],
    columns: NewColumns = None,
    filter_: Filter = None,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="beginning|tail|TIME",
            help="Start position for a new copy; ignored if one exists. TIME such as"
            " 2026-11-21T10:00:00Z.",
        ),
    ] = "beginning",
    anew: Annotated[
        bool, typer.Option("--anew", help="Rebuild existing copies and swap them when complete.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when the copies have caught up.")
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            help="The follower's name; required if its state is kept at the daemon (python:).",
        ),
    ] = "",
    store: Annotated[
        str | None,
        typer.Option("--store", help="URL of the daemon's store. Default: ask the daemon."),
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

    In DuckDB, rows and the follower's state are committed in one transaction.
    Others may open the file read-only in between. A restart continues exactly
    where it stopped, also after kill -9. With other columns or another filter
    the copy is rebuilt; readers see the earlier copy until it is complete.
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
