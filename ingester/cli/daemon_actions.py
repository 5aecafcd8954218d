"""``persist``, ``drain`` and ``log-level``: commands that change a running daemon."""

from collections.abc import Mapping
from typing import Any

from ingester.client import InvalidRequest
from ingester.client.wire import given
from ingester.config.units import parse_duration

from .connecting import connect, connect_to_one
from .exits import USAGE, CommandFailed
from .printing import print_json, print_line, print_table, size


def run_persist(
    endpoint: str, target: tuple[str | None, str | None], timeout: str, as_json: bool
) -> None:
    """Flush everything acknowledged so far, and print the committed version of each table.

    Raises:
        TimedOut: it is not done in time; the flushes continue.
    """
    try:
        timeout_s = parse_duration(timeout)
    except ValueError as exc:
        raise CommandFailed(f"--timeout: {exc}", USAGE) from exc
    with connect(endpoint) as client:
        done = client.persist(*target, timeout_s=timeout_s)
    if as_json:
        print_json(done)
    elif not done:
        print_line("nothing to persist")
    else:
        rows = [(one.namespace, one.table, one.manifest_version) for one in done]
        print_table(["namespace", "table", "version"], rows)


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
        print_line(_drain_line(found))
    if wait and found.get("state") != "drained":
        raise CommandFailed(f"not drained within {timeout}; the drain continues")


def _drain_line(found: Mapping[str, Any]) -> str:
    if found.get("state") == "drained":
        return "drained: everything is in files; the daemon may be stopped"
    if found.get("state") == "none":
        return "not draining: the daemon accepts writes"
    return (
        f"draining: {found.get('buffers')} buffers with {size(found.get('bytes'))} unflushed,"
        f" {found.get('tables')} tables still claimed"
        + (f"; {found['problem']}" if found.get("problem") else "")
    )


def run_log_level(
    endpoint: str, level: str | None, logger: str | None, for_: str | None, as_json: bool
) -> None:
    """Set the level, if one is given, and print the current levels.

    Raises:
        CommandFailed: wrong usage. ClientError: the daemon refused.
    """
    if level is None and (logger is not None or for_ is not None):
        option = "--for" if logger is None else "--logger"
        raise CommandFailed(f"{option} needs a LEVEL before it", USAGE)
    try:
        for_s = None if for_ is None else parse_duration(for_)
    except ValueError as exc:
        raise CommandFailed(f"--for: {exc}", USAGE) from exc
    body = given({"level": level and level.lower(), "logger": logger, "for_s": for_s})
    with connect_to_one(endpoint, "log-level") as client:
        try:
            (told,) = client.action("log_level", body)
        except InvalidRequest as exc:
            if exc.code != InvalidRequest.default_code:
                raise
            raise CommandFailed(exc.message, USAGE) from exc
    if as_json:
        print_json(told)
        return
    print_table(["logger", "level", "until"], log_level_rows(told))


def log_level_rows(told: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Return a row for the setting, and one for each level set since the start."""
    rows: list[tuple[object, ...]] = [("(log.level)", told.get("level"), "")]
    for each in told.get("set") or []:
        rows.append((each.get("logger") or "(all)", each.get("level"), each.get("until") or "stop"))
    return rows
