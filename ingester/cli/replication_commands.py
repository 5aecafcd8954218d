"""``ingester replicate status``: its options; what it does is in :mod:`.replication_status`.

That is imported when the command runs, so that ``ingester --help`` does not wait for pyarrow.
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
