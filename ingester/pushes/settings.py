"""The settings of hooks: which classes, with which configuration, and what bounds their calls.

    [hooks]
    classes = ["ingester.pushes.shipped.minimum_delay:MinimumDelay", "acme.pushes:Gate"]
    threads = 4
    timeout = "30s"

    [hooks.config]
    "minimum_delay.delay" = "15m"

    [hooks.tables."shop/visits"]
    "minimum_delay.delay" = "1h"

Law of this file: pure. A key that is not known, and a value that cannot be, is refused with its
name; what the classes say of their configuration is :mod:`ingester.pushes.loading`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

import msgspec

from ingester.config.units import parse_duration
from ingester.pushes.answers import Decision
from ingester.pushes.asking import Patience

CLASS_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""The name of a class: ``package.module:Class``."""
_DURATIONS = ("timeout", "wait_interval", "wait_deadline")


class HookConfigError(ValueError):
    """Hooks that cannot be configured so; the message names the key, the class or the table."""


class HookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that may be said of hooks; durations are seconds."""

    classes: tuple[str, ...] = ()
    """The classes that are asked, in this order, as ``package.module:Class``."""
    threads: int = 4
    """So many hooks run at a time; of one table one."""
    timeout: float = 30.0
    """A call that takes longer has failed."""
    wait_interval: float = 60.0
    """A hook that has said wait is asked again after so long."""
    wait_deadline: float = 86400.0
    """A wait so long after the step's begin, or later, is answered as ``on_deadline`` says."""
    on_deadline: Literal["abort", "rollback", "proceed"] = "abort"
    on_error: Literal["proceed", "abort"] | None = None
    """What a call that fails counts as: by default abort before something, proceed after it."""
    config: dict[str, str] = {}
    """What the constructors of all classes get."""
    tables: dict[str, dict[str, str]] = {}
    """What replaces it for single tables, by ``namespace/table``."""

    def __post_init__(self) -> None:
        for name in self.classes:
            if not CLASS_NAME.fullmatch(name):
                raise ValueError(f"hooks.classes: {name!r} is not package.module:Class")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"hooks.classes names a class twice: {', '.join(self.classes)}")
        if not 1 <= self.threads <= 256:
            raise ValueError(f"hooks.threads: {self.threads} is out of range (1 to 256)")
        for key in _DURATIONS:
            if not getattr(self, key) > 0:
                raise ValueError(f"hooks.{key}: {getattr(self, key)} is not above 0")
        for key in self.tables:
            if key.count("/") != 1 or not all(key.split("/")):
                raise ValueError(f"hooks.tables: {key!r} is not namespace/table")

    @property
    def patience(self) -> Patience:
        """The pause between rounds, the deadline, and what comes of it."""
        return Patience(
            timedelta(seconds=self.wait_interval),
            timedelta(seconds=self.wait_deadline),
            Decision(self.on_deadline),
        )

    def config_of(self, namespace: str, table: str) -> dict[str, str]:
        """Return the configuration for a table."""
        return {**self.config, **self.tables.get(f"{namespace}/{table}", {})}


def hook_settings(section: Mapping[str, object]) -> HookSettings:
    """Return the settings of a section as a TOML file has it; durations may be texts as ``"30s"``.

    Raises:
        HookConfigError: naming the key.
    """
    plain = dict(section)
    for key in _DURATIONS:
        if key in plain:
            try:
                plain[key] = parse_duration(plain[key])
            except ValueError as exc:
                raise HookConfigError(f"hooks.{key}: {exc}") from exc
    try:
        return msgspec.convert(plain, HookSettings)
    except msgspec.ValidationError as exc:
        message = str(exc)
        raise HookConfigError(
            message if message.startswith("hooks.") else f"hooks: {message}"
        ) from exc
