"""Options of ``ingester replicate status`` and ``verify``.

Their modules are imported when the command runs, so that ``ingester --help`` does not load pyarrow.
"""

from typing import Annotated

import typer

from .command_options import ENDPOINT, Endpoint, Json
from .exits import end_on_signals


def replication_status(
    namespace: Annotated[str, typer.Argument(help="Target namespace.", show_default=False)],
    origin: Annotated[str | None, typer.Option("--origin", help="Show only this origin.")] = None,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Show the replicators of a namespace, and their tables with phases and reasons.

    If no replicator reports, the tables' stored states are shown. Exits with 1 if a table is set
    aside or no replicator reports.
    """
    end_on_signals()
    from .replication_status import print_replications

    print_replications(endpoint, namespace, origin, json)


def replication_verify(
    dsn: Annotated[
        str, typer.Argument(help="Source database, as for psql; or env:NAME, file:PATH.")
    ],
    namespace: Annotated[str, typer.Argument(help="Target namespace.", show_default=False)],
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Target tables. Default: all."),
    ] = None,
    origin: Annotated[
        str, typer.Option("--origin", help="The replicator's origin. Default: the only one.")
    ] = "",
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="TABLE=NAME", help="The replicator's renames."),
    ] = None,
    wait: Annotated[
        str, typer.Option("--wait", help="How long to wait for a copy that is behind.")
    ] = "60s",
    ignore_set_aside: Annotated[
        bool,
        typer.Option("--ignore-set-aside", help="Ignore tables that are set aside or left."),
    ] = False,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Compare PostgreSQL's tables with their copies row by row, and list differences.

    May run at any time, also while a replicator runs: it waits for changes in transit. Exits with 0
    if all tables are equal, else with 1.
    """
    end_on_signals()
    from .replicate_verify import VerifyArguments, run_verify

    arguments = VerifyArguments(
        dsn=dsn,
        namespace=namespace,
        tables=tuple(tables or ()),
        origin=origin,
        renames=tuple(rename or ()),
        wait=wait,
        ignores_set_aside=ignore_set_aside,
    )
    run_verify(endpoint, arguments, json)
