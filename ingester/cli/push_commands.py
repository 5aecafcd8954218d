"""``ingester controller`` and ``ingester pushes …``: their options.

What they do is in :mod:`.controller` and :mod:`.pushes`, which are imported when a command runs.
"""

from pathlib import Path
from typing import Annotated

import typer

from .command_options import Insecure, Json

pushes_app = typer.Typer(help="Pushes of whole table versions: where they stand, and their end.")

Config = Annotated[Path, typer.Option("--config", help="TOML file with regions, hooks and pushes.")]
PushId = Annotated[str, typer.Argument(metavar="PUSH", help="The push's id.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", help="Is kept with the push.")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Only ask: whoever leads the push will hear of it.")
]
Timeout = Annotated[str, typer.Option("--timeout", help="How long to wait for the push's end.")]


def controller(
    config: Config,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="HOST:PORT for /metrics and /health.")
    ] = None,
    insecure: Insecure = False,
    once: Annotated[
        bool, typer.Option("--once", help="End as soon as what nobody led is led to its end.")
    ] = False,
) -> None:
    """Lead the pushes that nobody leads, until SIGINT or SIGTERM; delete those of long ago.

    Any number of controllers may run over the same regions. Its log has every change of a push.
    """
    from .controller import run_controller
    from .metrics_server import MetricsAddress

    at = None if metrics is None else MetricsAddress("--metrics", metrics, insecure)
    run_controller(config, at, once)


@pushes_app.command("list")
def list_(config: Config, json: Json = False) -> None:
    """List the pushes that are kept, the newest first."""
    from .pushes import print_pushes

    print_pushes(config, json)


@pushes_app.command()
def show(
    push: PushId,
    config: Config,
    events: Annotated[
        int, typer.Option("--events", min=0, help="So many of the newest events.")
    ] = 20,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until the push is over.")] = False,
    json: Json = False,
) -> None:
    """Print where a push stands: its regions, what they wait for, and what has happened."""
    from .pushes import print_push

    print_push(config, push, events, watch, json)


@pushes_app.command()
def resume(
    push: PushId,
    config: Config,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Also from a leader that is there.")
    ] = False,
    json: Json = False,
) -> None:
    """Lead a push here, until it is over. Exit code 1 where it is not live everywhere then."""
    from .push_requests import resume_push

    resume_push(config, push, take_over, json)


@pushes_app.command()
def abort(
    push: PushId,
    config: Config,
    reason: Reason = "asked for on the command line",
    no_wait: NoWait = False,
    timeout: Timeout = "10m",
    json: Json = False,
) -> None:
    """Give a push up: what is live stays, nothing further is begun; and wait for that."""
    from .push_requests import Asked, end_push

    end_push(config, Asked(push, "abort", reason, no_wait, timeout), json)


@pushes_app.command()
def rollback(
    push: PushId,
    config: Config,
    reason: Reason = "asked for on the command line",
    no_wait: NoWait = False,
    timeout: Timeout = "10m",
    json: Json = False,
) -> None:
    """Undo a push, also one that has ended: its regions go back to the versions before."""
    from .push_requests import Asked, end_push

    end_push(config, Asked(push, "rollback", reason, no_wait, timeout), json)
