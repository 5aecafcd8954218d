"""The configuration of pushes: regions, hooks and rules, from one TOML file.

    [regions.berlin]
    url = "s3://lake-berlin/prod"
    endpoints = ["grpc://10.0.0.5:8082"]
    store_options = { key = "env:BERLIN_KEY", secret = "file:/run/secrets/berlin" }
    tls_ca = "/etc/ingester/ca.pem"     # endpoints are then grpc+tls://
    token_file = "/run/secrets/token"

    [pushes]
    order = "in_order"
    on_failure = "rollback"

    [hooks]
    classes = ["ingester.pushes.shipped:MinimumDelay", "acme.pushes:Gate"]
    timeout = "30s"

    [hooks.config]
    "minimum_delay.delay" = "15m"

    [hooks.tables."shop/visits"]
    "minimum_delay.delay" = "1h"

The order of the regions is that of the file. Unknown keys and invalid values are refused by name
(tests/pushes/test_push_config). Secrets may be stored elsewhere and are never shown.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ingester.client import arguments
from ingester.client.credentials import ConnectionOptions, Credentials
from ingester.client.errors import InvalidRequest
from ingester.config.secret_values import secret_value, stands_elsewhere
from ingester.config.units import parse_duration
from ingester.pushes.hooks import Decision
from ingester.pushes.record import Patience
from ingester.pushes.states import RegionOrder
from ingester.pushes.tasks import Rules
from ingester.secret_texts import remember_options
from persist.store.option_names import EARLIER_NAME, NAME, refuse_both

REGION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
HOOK_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_HOOK_DURATIONS = ("timeout", "wait_interval", "wait_deadline")
_PUSH_DURATIONS = ("unreachable_after", "followers_deadline", "retain")
_SECTIONS = ("regions", "hooks", "pushes")
T = TypeVar("T")


class PushConfigError(ValueError):
    """An invalid configuration of pushes; the message names the region or the key."""


class HookConfigError(ValueError):
    """An invalid configuration of hooks; the message names the key, the class or the table."""


class HookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[hooks]``; durations in seconds."""

    classes: tuple[str, ...] = ()
    """The classes to call, in this order, as ``package.module:Class``."""
    threads: int = 4
    """The number of hooks that run at the same time; one for each table."""
    timeout: float = 30.0
    """A longer call has failed."""
    wait_interval: float = 60.0
    """The pause before a hook that answered wait is called again."""
    wait_deadline: float = 86400.0
    """A wait this long after the start of the step counts as ``on_deadline``."""
    on_deadline: Literal["abort", "rollback", "proceed"] = "abort"
    on_error: Literal["proceed", "abort", "wait"] | None = None
    """What a failed call counts as: by default abort in ``pre_``, proceed in ``post_`` methods.

    ``wait`` leaves that as it is for methods that may not wait.
    """
    config: dict[str, str] = {}
    """The configuration of all classes."""
    tables: dict[str, dict[str, str]] = {}
    """Overrides for single tables, by ``namespace/table``."""

    def __post_init__(self) -> None:
        for name in self.classes:
            if not HOOK_CLASS.fullmatch(name):
                raise ValueError(f"hooks.classes: {name!r} is not package.module:Class")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"hooks.classes names a class twice: {', '.join(self.classes)}")
        if not 1 <= self.threads <= 256:
            raise ValueError(f"hooks.threads: {self.threads} is out of range (1 to 256)")
        for key in _HOOK_DURATIONS:
            if not getattr(self, key) > 0:
                raise ValueError(f"hooks.{key}: {getattr(self, key)} is not above 0")
        for key in self.tables:
            if key.count("/") != 1 or not all(key.split("/")):
                raise ValueError(f"hooks.tables: {key!r} is not namespace/table")

    @property
    def patience(self) -> Patience:
        """The waiting rules of the hooks."""
        return Patience(
            timedelta(seconds=self.wait_interval),
            timedelta(seconds=self.wait_deadline),
            Decision(self.on_deadline),
        )

    def config_of(self, namespace: str, table: str) -> dict[str, str]:
        """Return the configuration for a table."""
        return {**self.config, **self.tables.get(f"{namespace}/{table}", {})}


class RegionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A region: a store, and the daemons that serve its tables.

    Attributes:
        url: the store, as ``s3://bucket/prefix``.
        endpoints: the daemons, as ``grpc://host:port``; may be empty.
        store_options: for ``persist.store.open_store``, secrets filled in.
        tls_ca, tls_cert, tls_key, token_file: for clients of the daemons.
    """

    name: str
    url: str
    endpoints: tuple[str, ...] = ()
    store_options: dict[str, Any] = {}
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token_file: str | None = None

    def __post_init__(self) -> None:
        where = f"regions.{self.name}"
        if not REGION_NAME.fullmatch(self.name):
            raise ValueError(f"regions: {self.name!r} does not match {REGION_NAME.pattern}")
        if not self.url:
            raise ValueError(f"{where}.url: it is empty")
        if len(set(self.endpoints)) < len(self.endpoints):
            raise ValueError(f"{where}.endpoints names a daemon twice")
        for endpoint in self.endpoints:
            try:
                arguments.endpoint(endpoint)
            except InvalidRequest as exc:
                raise ValueError(f"{where}.endpoints: {exc}") from exc
        try:
            options = self.connection()
            for endpoint in self.endpoints:
                Credentials(arguments.endpoint(endpoint, options.scheme), options)
        except InvalidRequest as exc:
            raise ValueError(f"{where}: {exc}") from exc

    def connection(self) -> ConnectionOptions:
        """Return the TLS trust and the token for clients of the daemons."""
        return ConnectionOptions(
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            token_file=self.token_file,
        )

    def __repr__(self) -> str:
        """Return the settings without the values of store options, which may be secret."""
        options = ", ".join(sorted(self.store_options))
        return (
            f"RegionSettings(name={self.name!r}, url={self.url!r}, endpoints={self.endpoints!r},"
            f" store_options=<{options}>)"
        )


class PushSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[pushes]``; durations in seconds."""

    order: Literal["at_once", "in_order", "target_first"] = "at_once"
    target: str | None = None
    """The first region to go live, with ``target_first``."""
    unreachable_after: float = 3600.0
    """A region that is unreachable for this long is handled by ``on_unreachable``."""
    on_unreachable: Literal["wait", "skip", "abort", "rollback"] = "abort"
    followers_deadline: float = 600.0
    """Followers that lag for this long are handled by ``on_followers``."""
    on_followers: Literal["wait", "proceed", "abort", "rollback"] = "abort"
    on_failure: Literal["abort", "rollback"] = "abort"
    """What to do if a region fails for good."""
    retain: float = 30 * 86400.0
    """The records of a push are deleted this long after its end."""

    def __post_init__(self) -> None:
        if (self.order == "target_first") != (self.target is not None):
            raise ValueError("pushes.target: it goes together with order = 'target_first'")


class PushConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration."""

    regions: tuple[RegionSettings, ...]
    hooks: HookSettings = HookSettings()
    pushes: PushSettings = PushSettings()

    def __post_init__(self) -> None:
        if not self.regions:
            raise ValueError("regions: there is none; a push needs at least one")
        for key, values in (
            ("name", [each.name for each in self.regions]),
            ("url", [each.url.rstrip("/") for each in self.regions]),
        ):
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"regions: two have the {key} {', '.join(twice)}")
        self.order()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the regions, in order."""
        return tuple(each.name for each in self.regions)

    def region(self, name: str) -> RegionSettings:
        """Return the settings of a region.

        Raises:
            PushConfigError: no such region is configured.
        """
        for each in self.regions:
            if each.name == name:
                return each
        raise PushConfigError(
            f"no region {name!r} is configured; there are {', '.join(self.names)}"
        )

    def order(self, names: tuple[str, ...] | None = None) -> RegionOrder:
        """Return the order of a push to these regions; by default to all.

        Raises:
            PushConfigError: a region is not configured, or the target is not one of them.
        """
        wanted = self.names if names is None else names
        for name in wanted:
            self.region(name)
        try:
            return RegionOrder(wanted, self.pushes.order, self.pushes.target)
        except ValueError as exc:
            raise PushConfigError(f"pushes: {exc}") from exc

    def rules(self) -> Rules:
        """Return the rules of a push, without the names of its hooks."""
        pushes = self.pushes
        return Rules(
            patience=self.hooks.patience,
            unreachable_after=timedelta(seconds=pushes.unreachable_after),
            on_unreachable=pushes.on_unreachable,
            followers_deadline=timedelta(seconds=pushes.followers_deadline),
            on_followers=pushes.on_followers,
            on_failure=pushes.on_failure,
        )


def read_push_config(path: Path | str) -> PushConfig:
    """Read a TOML file.

    Raises:
        PushConfigError: the file cannot be read, or is invalid.
        HookConfigError: its section ``[hooks]`` is invalid.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise PushConfigError(f"{path}: {exc}") from exc
    try:
        return push_config(tables)
    except PushConfigError as exc:
        raise PushConfigError(f"{path}: {exc}") from exc
    except HookConfigError as exc:
        raise HookConfigError(f"{path}: {exc}") from exc


def push_config(tables: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> PushConfig:
    """Return the configuration of the parsed tables of a TOML file.

    Args:
        environ: for ``env:NAME`` in store options.

    Raises:
        PushConfigError, HookConfigError: naming the key.
    """
    strays = sorted(set(tables) - set(_SECTIONS))
    if strays:
        raise PushConfigError(f"unknown {', '.join(strays)}; known are {', '.join(_SECTIONS)}")
    for section in tables:
        _table(tables, section, section)
    named = tables.get("regions", {})
    regions = [_region(name, _table(named, name, f"regions.{name}"), environ) for name in named]
    hooks = hook_settings(tables.get("hooks", {}))
    rules = _in_seconds(tables.get("pushes", {}), "pushes", _PUSH_DURATIONS)
    pushes = _converted(rules, PushSettings, "pushes")
    try:
        return PushConfig(tuple(regions), hooks, pushes)
    except PushConfigError:
        raise
    except ValueError as exc:
        raise PushConfigError(str(exc)) from exc


def hook_settings(section: Mapping[str, object]) -> HookSettings:
    """Return the settings of the section ``[hooks]``; durations may be texts as ``"30s"``.

    Raises:
        HookConfigError: naming the key.
    """
    try:
        return _converted(_in_seconds(section, "hooks", _HOOK_DURATIONS), HookSettings, "hooks")
    except PushConfigError as exc:
        raise HookConfigError(str(exc)) from exc


def _table(tables: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = tables[key]
    if not isinstance(found, Mapping):
        raise PushConfigError(f"{where}: {found!r} is not a table; write [{where}]")
    return found


def _region(name: str, section: Mapping[str, Any], environ: Mapping[str, str]) -> RegionSettings:
    where = f"regions.{name}"
    if "name" in section:
        raise PushConfigError(f"{where}: unknown key 'name'; its name is that of the section")
    plain = {"name": name, **section}
    earlier = plain.pop(EARLIER_NAME, None)
    try:
        refuse_both(NAME, EARLIER_NAME, plain.get(NAME), earlier)
    except ValueError as exc:
        raise PushConfigError(f"{where}: {exc}") from exc
    if earlier is not None:
        plain[NAME] = earlier
    options = plain.get(NAME)
    if isinstance(options, Mapping):
        remember_options(options)
        plain[NAME] = _filled_in(options, f"{where}.{NAME}", environ)
    return _converted(plain, RegionSettings, where)


def _filled_in(
    options: Mapping[str, Any], where: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The options with ``env:NAME`` and ``file:/path`` replaced by their values."""
    filled: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            filled[key] = _filled_in(value, f"{where}.{key}", environ)
        elif stands_elsewhere(value):
            filled[key] = _secret(value, f"{where}.{key}", environ)
        else:
            filled[key] = value
    return filled


def _secret(value: str, where: str, environ: Mapping[str, str]) -> str:
    try:
        return secret_value(value, environ)
    except ValueError as exc:
        raise PushConfigError(f"{where}: {exc}") from exc


def _in_seconds(
    section: Mapping[str, Any], where: str, durations: tuple[str, ...]
) -> dict[str, Any]:
    """The section with its durations in seconds."""
    plain = dict(section)
    for key in durations:
        if key in plain:
            try:
                plain[key] = parse_duration(plain[key])
            except ValueError as exc:
                raise PushConfigError(f"{where}.{key}: {exc}") from exc
    return plain


def _converted(plain: Mapping[str, Any], kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as exc:
        message = str(exc)
        if not message.startswith(where.partition(".")[0]):
            message = f"{where}: {message}"
        raise PushConfigError(message) from exc
