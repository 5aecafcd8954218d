"""The configuration of pushes: which regions, which hooks, and how a push is led.

    [regions.berlin]
    url = "s3://lake-berlin/prod"
    endpoints = ["grpc://10.0.0.5:8082"]
    storage_options = { key = "env:BERLIN_KEY", secret = "file:/run/secrets/berlin" }
    tls_ca = "/etc/ingester/ca.pem"     # endpoints are grpc+tls:// then
    token_file = "/run/secrets/token"

    [pushes]
    order = "in_order"
    on_failure = "rollback"

    [hooks]                             # as `ingester.pushes.settings` says
    classes = ["acme.pushes:Gate"]

The order of the regions is that of the file. Law of this file: a key that is not known, and a value
that cannot be, is refused with its name; what is secret may stand elsewhere, and is shown nowhere.
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
from ingester.client.connection_options import ConnectionOptions
from ingester.client.credentials import Credentials
from ingester.client.errors import InvalidRequest
from ingester.config.secret_values import secret_value, stands_elsewhere
from ingester.config.units import parse_duration
from ingester.pushes.orders import Order
from ingester.pushes.settings import HookConfigError, HookSettings, hook_settings
from ingester.pushes.tasks import Rules
from ingester.secret_texts import remember_options

REGION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DURATIONS = ("unreachable_after", "followers_deadline", "retain")
_SECTIONS = ("regions", "hooks", "pushes")
T = TypeVar("T")


class PushConfigError(ValueError):
    """Pushes that cannot be configured so; the message names the region or the key."""


class RegionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A region: its store, and the daemons that serve from it.

    Attributes:
        url: Of the store, as ``s3://bucket/prefix``.
        endpoints: Of its daemons, as ``grpc://host:port``; there may be none.
        storage_options: As ``persist.store.open_store`` takes them, secrets filled in.
        tls_ca, tls_cert, tls_key, token_file: As a client of the daemons has them.
    """

    name: str
    url: str
    endpoints: tuple[str, ...] = ()
    storage_options: dict[str, Any] = {}
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
        """Return whom the daemons' clients trust, and by which token they come in."""
        return ConnectionOptions(
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            token_file=self.token_file,
        )

    def __repr__(self) -> str:
        """Return the settings without the values of the storage options, which may be secret."""
        options = ", ".join(sorted(self.storage_options))
        return (
            f"RegionSettings(name={self.name!r}, url={self.url!r}, endpoints={self.endpoints!r},"
            f" storage_options=<{options}>)"
        )


class PushSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pushes are led; durations are seconds."""

    order: Literal["at_once", "in_order", "target_first"] = "at_once"
    target: str | None = None
    """The region that goes live first, with ``target_first``."""
    unreachable_after: float = 3600.0
    """A region that cannot be reached for so long is handled as ``on_unreachable`` says."""
    on_unreachable: Literal["wait", "skip", "abort", "rollback"] = "abort"
    followers_deadline: float = 600.0
    """Followers that have not confirmed for so long are handled as ``on_followers`` says."""
    on_followers: Literal["wait", "proceed", "abort", "rollback"] = "abort"
    on_failure: Literal["abort", "rollback"] = "abort"
    """What is done when a region fails for good."""
    retain: float = 30 * 86400.0
    """What is kept of a push is deleted so long after its end."""

    def __post_init__(self) -> None:
        if (self.order == "target_first") != (self.target is not None):
            raise ValueError("pushes.target: it goes together with order = 'target_first'")


class PushConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is configured of pushes."""

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
        """The regions' names, in their order."""
        return tuple(each.name for each in self.regions)

    def region(self, name: str) -> RegionSettings:
        """Return the settings of a region.

        Raises:
            PushConfigError: there is none of that name.
        """
        for each in self.regions:
            if each.name == name:
                return each
        raise PushConfigError(
            f"no region {name!r} is configured; there are {', '.join(self.names)}"
        )

    def order(self, names: tuple[str, ...] | None = None) -> Order:
        """Return the order of a push to these regions; to all by default.

        Raises:
            PushConfigError: a region that is not configured, or a target that is not among them.
        """
        wanted = self.names if names is None else names
        for name in wanted:
            self.region(name)
        try:
            return Order(wanted, self.pushes.order, self.pushes.target)
        except ValueError as exc:
            raise PushConfigError(f"pushes: {exc}") from exc

    def rules(self) -> Rules:
        """Return how a push is led, but for the names of its hooks."""
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
    """Return the configuration that a TOML file has.

    Raises:
        PushConfigError: the file cannot be read, or names something that cannot be.
        HookConfigError: likewise, of its hooks.
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
    """Return the configuration of tables as a TOML file has them.

    Args:
        environ: Where ``env:NAME`` of a storage option is looked up.

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
    pushes = _pushes(tables.get("pushes", {}))
    try:
        return PushConfig(tuple(regions), hooks, pushes)
    except PushConfigError:
        raise
    except ValueError as exc:
        raise PushConfigError(str(exc)) from exc


def _table(tables: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = tables[key]
    if not isinstance(found, Mapping):
        raise PushConfigError(f"{where}: {found!r} is no table; write [{where}]")
    return found


def _region(name: str, section: Mapping[str, Any], environ: Mapping[str, str]) -> RegionSettings:
    where = f"regions.{name}"
    if "name" in section:
        raise PushConfigError(f"{where}: unknown key 'name'; its name is that of the section")
    plain = {"name": name, **section}
    options = plain.get("storage_options")
    if isinstance(options, Mapping):
        remember_options(options)
        plain["storage_options"] = _filled_in(options, f"{where}.storage_options", environ)
    return _converted(plain, RegionSettings, where)


def _filled_in(
    options: Mapping[str, Any], where: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The options with what ``env:NAME`` and ``file:/path`` stand for in the place of these."""
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


def _pushes(section: Mapping[str, Any]) -> PushSettings:
    plain = dict(section)
    for key in _DURATIONS:
        if key in plain:
            try:
                plain[key] = parse_duration(plain[key])
            except ValueError as exc:
                raise PushConfigError(f"pushes.{key}: {exc}") from exc
    return _converted(plain, PushSettings, "pushes")


def _converted(plain: Mapping[str, Any], kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as exc:
        message = str(exc)
        if not message.startswith(where.partition(".")[0]):
            message = f"{where}: {message}"
        raise PushConfigError(message) from exc
