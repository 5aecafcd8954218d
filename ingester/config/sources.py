"""Reads settings from their sources, strongest first: flags, environment, TOML file, defaults.

This is the only module that reads settings from the environment. ``persist.max_age`` is
``INGESTER_PERSIST__MAX_AGE=2s`` there and ``[persist] max_age = "2s"`` in the file; some settings
have a flag. An unknown key is an error that suggests the nearest known one, so that a misspelt
setting does not silently keep its default.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import msgspec

from ingester.secret_texts import masked, masked_options, remember, remember_options

from .settings import ConfigError, MemorySettings, Settings, range_of
from .units import parse_percent

PREFIX = "INGESTER_"
DEFAULT_ENDPOINT = "grpc://127.0.0.1:8082"

# Read by the command line, not by the daemon.
CONNECTION_VARIABLES = {
    "tls_ca": "INGESTER_TLS_CA",
    "tls_cert": "INGESTER_TLS_CERT",
    "tls_key": "INGESTER_TLS_KEY",
    "token": "INGESTER_TOKEN",
    "token_file": "INGESTER_TOKEN_FILE",
}
COMMAND_LINE_VARIABLES = {"INGESTER_ENDPOINT", "INGESTER_CONFIG", *CONNECTION_VARIABLES.values()}
# Kubernetes adds these to every pod when a Service is called "ingester"; tests have their own.
_FOREIGN = re.compile(r"INGESTER_(SERVICE_(HOST|PORT.*)|PORT|PORT_\d+_(TCP|UDP).*|TEST_.*)")
# Read from the environment by libraries.
_FOREIGN_SECRETS = (
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PGPASSWORD", "INGESTER_TOKEN",
)  # fmt: skip


class LoadedSettings(msgspec.Struct, frozen=True):
    """The effective settings, and the source of each dotted key."""

    settings: Settings
    origins: dict[str, str]


def known_keys() -> dict[str, type]:
    """Return every dotted key with the type of its value, in the order of the structs."""
    return dict(_keys_of(Settings))


def _keys_of(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, type]]:
    for field in msgspec.structs.fields(struct):
        if _is_section(field.type):
            yield from _keys_of(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field.type


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def load(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> LoadedSettings:
    """Return the effective settings and their sources.

    Args:
        flags: dotted key to value; ``None`` values were not given.
        environ: the environment; default: this process's.
        file: a TOML file; default: the one named by ``INGESTER_CONFIG``, else none.

    Raises:
        ConfigError: a key is unknown, a value is invalid, or the file cannot be read.
    """
    environ = os.environ if environ is None else environ
    remember(environ.get(name) for name in _FOREIGN_SECRETS)
    if file is None and environ.get("INGESTER_CONFIG"):
        file = Path(environ["INGESTER_CONFIG"])
    keys = known_keys()
    values: dict[str, Any] = {}
    origins = dict.fromkeys(keys, "default")
    sources = [
        *([_read_file(file)] if file is not None else []),
        _read_environment(environ),
        _read_flags(flags or {}),
    ]
    for source in sources:  # weakest first: the stronger overwrites
        for key, value, origin in source:
            if key not in keys:
                raise ConfigError(key, f"unknown setting ({origin}){_nearest(key, keys)}")
            if key in _OPTIONS:
                # Before an error message can contain it.
                remember([value] if isinstance(value, str) else ())
                remember_options(value if isinstance(value, dict) else {})
            try:
                made: Any = _convert(key, value, keys[key])
                if key in _OPTIONS:
                    remember_options(made)
                    if isinstance(value, _SingleOptions):
                        made = values.get(key, {}) | made
                values[key] = made
            except (ValueError, msgspec.ValidationError) as exc:
                raise ConfigError(key, f"{exc} ({origin})") from exc
            origins[key] = origin
    return LoadedSettings(_build(values), origins)


def endpoint(environ: Mapping[str, str] | None = None) -> str:
    """Return the daemon that commands talk to: ``INGESTER_ENDPOINT``, or the default."""
    return (os.environ if environ is None else environ).get("INGESTER_ENDPOINT", DEFAULT_ENDPOINT)


def connection_values(
    given: Mapping[str, str | None], environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the fields of ``ConnectionOptions``: those given, else those of the environment.

    ``token_file`` given as an argument overrides ``INGESTER_TOKEN``, and vice versa.
    """
    environ = os.environ if environ is None else environ
    found = {name: environ.get(key) for name, key in CONNECTION_VARIABLES.items()}
    named = {name: value for name, value in given.items() if value is not None}
    if "token_file" in named:
        found["token"] = None
    insecure = _convert("insecure", environ.get("INGESTER_INSECURE") or "false", bool)
    values = {name: value for name, value in (found | named).items() if value}
    return values | {"insecure": insecure}


class NotifyValues(msgspec.Struct, frozen=True):
    """The service manager's socket and watchdog.

    Attributes:
        address: the socket for notifications; None without a service manager.
        watchdog_s: the process is killed after this many seconds without one; None for no watchdog.
    """

    address: str | None = None
    watchdog_s: float | None = None


def notify_values(environ: Mapping[str, str] | None = None, pid: int | None = None) -> NotifyValues:
    """Return systemd's notification socket and watchdog (``sd_notify(3)``)."""
    environ = os.environ if environ is None else environ
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return NotifyValues()
    period, of = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    ours = not of or of == str(os.getpid() if pid is None else pid)
    watched = ours and period.isascii() and period.isdigit() and int(period) > 0
    # An abstract address begins with a zero byte.
    address = "\0" + address[1:] if address.startswith("@") else address
    return NotifyValues(address, int(period) / 1e6 if watched else None)


def shown_values(settings: Settings) -> dict[str, object]:
    """Return each dotted key and its value as written in a file, with secrets masked."""
    shown: dict[str, object] = {}
    for key, kind in known_keys().items():
        value = attrgetter(key)(settings)
        limits = range_of(kind)
        if limits is not None and limits.parse is not None:
            value = limits.show(value)
        value = msgspec.to_builtins(value) if isinstance(value, dict) else value
        shown[key] = _shown_value(key, value)
    shown["ack"] = settings.default_ack
    shown["store"] = masked(settings.store_url)
    shown["data_dir"] = str(settings.data_dir)
    return shown


def _shown_value(key: str, value: object) -> object:
    if key in _OPTIONS and isinstance(value, dict):
        return masked_options(value)
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, list):
        return [_shown_value(key, each) for each in value]
    if isinstance(value, dict):
        return {name: _shown_value(key, each) for name, each in value.items()}
    return value


Item = tuple[str, object, str]
_OPTIONS = ("store_options", "catalog_options")
"""Settings that are tables of another library's options."""


class _SingleOptions(dict[str, Any]):
    """Single options, which leave a weaker source's others as they are."""


def _part(options: dict[str, Any], name: str, path: list[str], value: object) -> None:
    inner = options
    for part in path[:-1]:
        inner = inner.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(name, f"{part!r} is both a value and a table")
    inner[path[-1]] = value


def _read_flags(flags: Mapping[str, object]) -> Iterator[Item]:
    options = {name: _SingleOptions() for name in _OPTIONS}
    for key, value in flags.items():
        if value is None:
            continue
        section, _, rest = key.partition(".")
        if section in options and rest:
            _part(options[section], key, rest.split("."), value)
        else:
            yield key, value, "flag"
    for section, given in options.items():
        if given:
            yield section, given, "flag"


def _read_environment(environ: Mapping[str, str]) -> Iterator[Item]:
    options = {name: _SingleOptions() for name in _OPTIONS}
    for name in sorted(environ):
        foreign = name in COMMAND_LINE_VARIABLES or _FOREIGN.fullmatch(name)
        if foreign or not name.startswith(PREFIX):
            continue
        parts = name.removeprefix(PREFIX).lower().split("__")
        if parts[0] in options and len(parts) > 1:
            _part(options[parts[0]], name, parts[1:], environ[name])
        elif ".".join(parts) not in known_keys():
            known = {PREFIX + key.upper().replace(".", "__") for key in known_keys()}
            raise ConfigError(name, f"unknown setting (environment){_nearest(name, known)}")
        else:
            yield ".".join(parts), environ[name], f"environment {name}"
    for section, given in options.items():
        if given:
            yield section, given, f"environment {PREFIX}{section.upper()}__…"


def _read_file(file: Path) -> Iterator[Item]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(str(file), f"cannot read the settings: {exc}") from exc
    sections = {key.rpartition(".")[0] for key in known_keys() if "." in key}
    for key, value in _flat(tables, sections, file):
        yield key, value, f"file {file}"


def _flat(
    table: dict[str, Any], sections: set[str], file: Path, prefix: str = ""
) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        key = prefix + name
        if key not in sections:
            yield key, value
            continue
        if not isinstance(value, dict):
            raise ConfigError(key, f"{value!r} is not a table ({file}); write [{key}]")
        inner = _namespaced(value) if key in _NAMESPACED else value
        yield from _flat(inner, sections, file, f"{key}.")


_NAMESPACED = ("quotas", "publish")


def _namespaced(section: dict[str, Any]) -> dict[str, Any]:
    """Move the tables of a section, which are namespaces, below ``namespaces``."""
    namespaces = {key: value for key, value in section.items() if isinstance(value, dict)}
    own = {key: value for key, value in section.items() if key not in namespaces}
    return own | ({"namespaces": namespaces} if namespaces else {})


def _nearest(key: str, known: Mapping[str, object] | set[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def _convert(key: str, value: object, kind: type) -> object:
    """Return a value in its type. A watermark in percent stays text until the limit is known."""
    if key in ("memory.low", "memory.high") and isinstance(value, str) and "%" in value:
        if parse_percent(value) is None:
            raise ValueError(f"not a percentage: {value!r}")
        return value
    if key in ("store", "data_dir") and not str(value).strip():
        # An unset variable in a template; the default would be another store.
        raise ValueError("is empty; give a value, or omit the setting for the default")
    limits = range_of(kind)
    if limits is not None and limits.parse is not None:
        number = limits.parse(value)
        if key.startswith("memory.") and number == 0:  # 0 stands for "not given" inside the struct
            raise ValueError(f"{value!r} is out of range (more than 0)")
        return number
    if hasattr(kind, "__metadata__") or NoneType in get_args(kind):
        kind = get_args(kind)[0]
    if choices := get_args(kind):
        if kind == dict[str, Any]:
            return _table(value)
        if get_origin(kind) is dict:
            return {
                name: _converted(name, each, choices[1]) for name, each in _table(value).items()
            }
        if kind == list[str]:
            return _texts(value)
        if value not in choices:
            raise ValueError(f"{value!r} is not one of {', '.join(map(repr, choices))}")
        return value
    if kind is Path:
        return Path(str(value)).expanduser()
    if kind is bool and isinstance(value, str):
        return _boolean(value)
    if kind is int and isinstance(value, str):
        return int(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{value!r} is not a {kind.__name__}")
    return value


def _boolean(text: str) -> bool:
    words: dict[str, bool] = {"true": True, "false": False, "1": True, "0": False}
    words |= {"yes": True, "no": False, "on": True, "off": False}
    if text.lower() not in words:
        raise ValueError(f"{text!r} is not true or false")
    return words[text.lower()]


def _table(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        return msgspec.json.decode(value, type=dict[str, Any])
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a table")
    return value


def _converted(name: str, value: object, kind: type) -> object:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        raise ValueError(f"{name!r}: {exc}") from exc


def _texts(value: object) -> list[str]:
    """Return a list; the environment has it as JSON or separated by commas."""
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            return msgspec.json.decode(value, type=list[str])
        return [text.strip() for text in value.split(",") if text.strip()]
    return msgspec.convert(value, list[str])


def _build(values: dict[str, Any]) -> Settings:
    limit = values.get("memory.limit") or MemorySettings().limit
    for key in ("memory.low", "memory.high"):
        if isinstance(value := values.get(key), str):
            values[key] = max(1, int(limit * (parse_percent(value) or 0)))
    return Settings(**_fields(Settings, values))


def _fields(struct: type[msgspec.Struct], values: Mapping[str, Any], prefix: str = "") -> Any:
    """Return the fields of a struct for which there are values, with its sections made."""
    made: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        key = prefix + field.name
        if key in values:
            made[field.name] = values[key]
        elif _is_section(field.type) and (inner := _fields(field.type, values, f"{key}.")):
            made[field.name] = field.type(**inner)
    return made
