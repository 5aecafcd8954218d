"""``drain``: makes a running daemon refuse writes and flush everything."""

from collections.abc import Mapping
from typing import Any

from ingester.config.units import parse_duration

from .connecting import connect_to_one
from .exits import USAGE, CommandFailed
from .printing import print_json, print_line, size


def run_drain(
    endpoint: str, timeout: str, *, wait: bool = False, undo: bool = False, as_json: bool = False
) -> None:
    """Start a drain, or undo it, and print its progress.

    Raises:
        CommandFailed: with ``wait``, it is not drained in time; it continues.
    """
    if wait and undo:
        raise CommandFailed("--wait and --undo do not go together", USAGE)
    try:
        timeout_s = parse_duration(timeout)
    except ValueError as exc:
        raise CommandFailed(f"--timeout: {exc}", USAGE) from exc
    wait_s = timeout_s if wait else 0.0
    with connect_to_one(endpoint, "drain") as client:
        # The daemon watches the time; ours is for one that does not answer.
        (found,) = client.action("drain", {"undo": undo, "wait_s": wait_s}, timeout_s=wait_s + 60.0)
    if as_json:
        print_json(found)
    else:
        print_line(_line(found))
    if wait and found.get("state") != "drained":
        raise CommandFailed(f"not drained within {timeout}; the drain continues")


def _line(found: Mapping[str, Any]) -> str:
    if found.get("state") == "drained":
        return "drained: everything is in files; the daemon may be stopped"
    if found.get("state") == "none":
        return "not draining: the daemon accepts writes"
    return (
        f"draining: {found.get('buffers')} buffers with {size(found.get('bytes'))} unflushed,"
        f" {found.get('tables')} tables still claimed"
        + (f"; {found['problem']}" if found.get("problem") else "")
    )
