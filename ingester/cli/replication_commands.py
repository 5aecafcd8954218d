"""``ingester replicate status`` and ``verify``: their options.

What they do is in :mod:`.replication_status` and :mod:`.replicate_verify`, which are imported when
the command runs, so that ``ingester --help`` does not wait for pyarrow.
"""

from typing import Annotated

import typer

from .command_options import ENDPOINT, Endpoint, Json
from .exits import end_on_signals


def replication_status(
    namespace: Annotated[str, typer.Argument(help="Where the tables go.", show_default=False)],
    origin: Annotated[
        str | None, typer.Option("--origin", help="Only this one; default: all of the namespace.")
    ] = None,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Show where replications stand: the replicator, and each table with its phase and reason.

    The daemon tells what replicators report to it, and where none does, what the tables' states
    say. Ends with 1 if a table is set aside, or if nobody reports.
    """
    end_on_signals()
    from .replication_status import print_replications

    print_replications(endpoint, namespace, origin, json)


def replication_verify(
    dsn: Annotated[str, typer.Argument(help="As psql takes it; or env:NAME, file:PATH.")],
    namespace: Annotated[str, typer.Argument(help="Where its tables are.", show_default=False)],
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="By their names here; default: all."),
    ] = None,
    origin: Annotated[
        str, typer.Option("--origin", help="As the replicator has it; default: the only one.")
    ] = "",
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="TABLE=NAME", help="As the replicator has them."),
    ] = None,
    wait: Annotated[
        str, typer.Option("--wait", help="How long a copy that is behind is waited for.")
    ] = "60s",
    ignore_set_aside: Annotated[
        bool, typer.Option("--ignore-set-aside", help="Tables set aside, or left, are fine.")
    ] = False,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Compare PostgreSQL's tables with their copies, row by row, and name what differs.

    May run at any time, beside a replicator too: changes that are on their way are waited for. Ends
    with 0 if all tables are equal, else with 1.
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
