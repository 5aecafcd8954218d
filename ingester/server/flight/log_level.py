"""The action ``log_level``: which events the log has, asked and set while the daemon runs."""

from __future__ import annotations

from typing import Any

import msgspec

from ingester.errors import InvalidRequest
from ingester.observability.log_levels import LEVELS
from ingester.server.flight.requests import LogLevelBody
from ingester.server.services import Services
from ingester.shown_text import shown_name

DEFAULT = "default"
"""The word that takes back what was set."""


async def change_log_level(services: Services, body: LogLevelBody) -> list[Any]:
    """Set a level, where the body has one, and return those that hold now.

    Raises:
        InvalidRequest: there is no such level or logger, or the time is none.
    """
    levels, level = services.log_levels, body.level
    if level is None and (body.logger or body.for_s is not None):
        raise InvalidRequest("log_level: a 'logger' and 'for_s' need a 'level'")
    if level is not None:
        known = next((each for each in LEVELS if each == level.lower()), None)
        if known is None and level.lower() != DEFAULT:
            raise InvalidRequest(
                f"log_level: {shown_name(level)} is none of {', '.join(LEVELS)} and {DEFAULT}"
            )
        try:
            levels.set(known, body.logger, body.for_s)
        except ValueError as exc:
            raise InvalidRequest(f"log_level: {exc}") from exc
    return [msgspec.to_builtins(levels.status())]
