"""``log-level``: shows and sets the log levels of a running daemon."""

from collections.abc import Mapping
from typing import Any

from ingester.client import InvalidRequest
from ingester.client.wire import given
from ingester.config.units import parse_duration

from .connecting import connect_to_one
from .exits import USAGE, CommandFailed
from .printing import print_json, print_table


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
