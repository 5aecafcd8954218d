"""Opens a destination by its name: ``duckdb:FILE``, ``parquet:FOLDER``, ``python:MODULE:CLASS``.

A user's class is checked before the daemon is asked anything: module, base class, and the number of
arguments of each method.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ingester.client.errors import ClientError, InvalidRequest
from ingester.followers.duckdb_sink import DuckDBDatabase
from ingester.followers.parquet_sink import ParquetFolder
from ingester.followers.sink import FollowedTable, FollowerSink

_CALLS: dict[str, int] = {
    "on_start_version": 2,
    "put": 1,
    "delete": 1,
    "on_end_version": 1,
    "on_recovery": 0,
    "close": 0,
    "checkpoint_store": 0,
    "fingerprint": 0,
    "transaction": 0,
    "take_back": 2,
    "take_back_all": 2,
    "put_files": 1,
    "drop_version": 1,
}
"""The methods of a sink and the number of arguments that each is called with."""


class Destination(Protocol):
    """Makes the sink of each table."""

    def sink(self, table: FollowedTable) -> FollowerSink:
        """The sink of a table."""

    def close(self) -> None:
        """Release what the sinks share. A sink that waits for it is interrupted."""


class _UserClass:
    """A destination whose sinks are of a user's class and share nothing."""

    def __init__(self, name: str) -> None:
        self._make = sink_class(name)

    def sink(self, table: FollowedTable) -> FollowerSink:
        return self._make(table)

    def close(self) -> None:
        pass


def open_destination(text: str, locked: Callable[[str], None] = lambda holder: None) -> Destination:
    """The destination that ``text`` names.

    Args:
        locked: Called with the holder of a locked file, once per wait.

    Raises:
        InvalidRequest: The kind is unknown, or the file or folder is not writable.
    """
    kind, colon, rest = text.partition(":")
    if not (colon and rest) or kind not in ("duckdb", "parquet", "python"):
        raise InvalidRequest(
            f"{text!r} is not a destination: expected duckdb:FILE, parquet:FOLDER or"
            " python:package.module:Class"
        )
    if kind == "duckdb":
        return DuckDBDatabase(Path(rest), locked)
    return ParquetFolder(Path(rest)) if kind == "parquet" else _UserClass(rest)


def sink_class(name: str) -> Callable[[FollowedTable], FollowerSink]:
    """The factory of a user's class, named ``package.module:Class``.

    The working directory is searched for modules as well.

    Raises:
        InvalidRequest: The message names the class and the fault.
    """
    module_name, colon, class_name = name.partition(":")
    if not (colon and module_name and class_name):
        raise InvalidRequest(f"{name!r} is not of the form package.module:Class")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    found: object = _imported(module_name)
    for part in class_name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as exc:
            raise InvalidRequest(f"module {module_name!r} has no class {class_name!r}") from exc
    if not (inspect.isclass(found) and issubclass(found, FollowerSink)):
        raise InvalidRequest(f"{name} is not a subclass of ingester.followers.sink.FollowerSink")
    _check(name, found)
    kind: type[FollowerSink] = found
    return lambda table: _made(name, kind, table)


def _imported(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            raise InvalidRequest(
                f"module {exc.name!r} was not found: install it, or run in its directory"
            ) from exc
        raise InvalidRequest(f"module {name!r} cannot be imported: {exc}") from exc
    except (Exception, SystemExit) as exc:
        told = str(exc) or type(exc).__name__
        raise InvalidRequest(f"module {name!r} cannot be imported: {told}") from exc


def _check(name: str, kind: type[FollowerSink]) -> None:
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise InvalidRequest(f"{name} lacks {', '.join(missing)}")
    for method, count in _CALLS.items():
        call = getattr(kind, method, None)
        if call is None:
            continue
        if not callable(call):
            raise InvalidRequest(f"{name}.{method} is not a method")
        static = isinstance(inspect.getattr_static(kind, method), staticmethod | classmethod)
        _check_arguments(f"{name}.{method}", call, count + (not static), count)
    _check_arguments(name, kind, 1, 1, "the followed table")


def _check_arguments(
    name: str, call: Callable[..., object], given: int, said: int, what: str = ""
) -> None:
    signature = inspect.signature(call)
    if inspect.iscoroutinefunction(call):
        raise InvalidRequest(f"{name} is a coroutine; the methods of sinks are plain functions")
    try:
        signature.bind(*range(given))
    except TypeError as exc:
        arguments = what or f"{said} argument{'' if said == 1 else 's'}"
        raise InvalidRequest(
            f"{name}{signature} cannot be called with {arguments}: {exc}; see"
            " ingester.followers.sink"
        ) from exc


def _made(name: str, kind: type[FollowerSink], table: FollowedTable) -> FollowerSink:
    make: Callable[[FollowedTable], FollowerSink] = kind
    try:
        return make(table)
    except ClientError:
        raise
    except Exception as exc:
        told = str(exc) or type(exc).__name__
        raise InvalidRequest(f"{name} cannot be made for {table.table}: {told}") from exc
