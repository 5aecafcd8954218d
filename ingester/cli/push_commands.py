"""``ingester controller`` and ``ingester pushes …``: their options.

The commands themselves are in :mod:`.controller` and :mod:`.pushes`, which are imported when a
command runs.
"""

from pathlib import Path
from typing import Annotated

import typer

from .command_options import Insecure, Json

pushes_app = typer.Typer(help="List and show pushes, and resume, release, abort or roll them back.")

Config = Annotated[
    Path, typer.Option("--config", help="TOML file with regions, hooks and rules of pushes.")
]
PushId = Annotated[str, typer.Argument(metavar="PUSH", help="Id of the push.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", help="Reason, stored with the push.")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Only record the request, for the push's leader.")
]
Timeout = Annotated[str, typer.Option("--timeout", help="How long to wait for the push to end.")]


def controller(
    config: Config,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="HOST:PORT of /metrics and /health.")
    ] = None,
    insecure: Insecure = False,
    once: Annotated[
        bool, typer.Option("--once", help="Exit when no push without a leader is left.")
    ] = False,
) -> None:
    """Take over pushes without a leader; purge expired ones.

    Runs until SIGINT or SIGTERM. Several controllers may run for the same regions. The log shows
    every event of a push.
    """
    from .controller import run_controller
    from .metrics_server import MetricsAddress

    at = None if metrics is None else MetricsAddress("--metrics", metrics, insecure)
    run_controller(config, at, once)


@pushes_app.command("list")
def list_(config: Config, json: Json = False) -> None:
    """List stored pushes, newest first."""
    from .pushes import print_pushes

    print_pushes(config, json)


@pushes_app.command()
def show(
    push: PushId,
    config: Config,
    events: Annotated[
        int, typer.Option("--events", min=0, help="Number of newest events to show.")
    ] = 20,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep showing changes until the push is over.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a push: its regions, what they wait for, and its events."""
    from .pushes import print_push

    print_push(config, push, events, watch, json)


@pushes_app.command()
def resume(
    push: PushId,
    config: Config,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take over from a running leader, too.")
    ] = False,
    json: Json = False,
) -> None:
    """Lead a push here until it is over. Exit code 1 if it is not live in every region."""
    from .pushes import resume_push

    resume_push(config, push, take_over, json)


@pushes_app.command()
def release(
    push: PushId,
    config: Config,
    reason: Reason = "requested on the command line",
) -> None:
    """Let a push with a deferred switch go live. Its leader does so within seconds."""
    from .pushes import release_push

    release_push(config, push, reason)


@pushes_app.command()
def abort(
    push: PushId,
    config: Config,
    reason: Reason = "requested on the command line",
    no_wait: NoWait = False,
    timeout: Timeout = "10m",
    json: Json = False,
) -> None:
    """Abort a push, and wait for its end. Regions that have switched stay as they are."""
    from .pushes import EndRequest, end_push

    end_push(config, EndRequest(push, "abort", reason, no_wait, timeout), json)


@pushes_app.command()
def rollback(
    push: PushId,
    config: Config,
    reason: Reason = "requested on the command line",
    no_wait: NoWait = False,
    timeout: Timeout = "10m",
    json: Json = False,
) -> None:
    """Roll a push back, also a finished one: its regions return to the previous generation."""
    from .pushes import EndRequest, end_push

    end_push(config, EndRequest(push, "rollback", reason, no_wait, timeout), json)
