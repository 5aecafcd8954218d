"""A sink of the user's own, by its name: ``package.module:Class``.

Law of this file: what would fail at the first row is refused before the first question to the
daemon: a module that is not there, a class that is no sink, a method that cannot be called.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

from ingester.client.errors import ClientError, InvalidRequest
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
"""The methods of a sink with the number of arguments that each is called with."""


def sink_class(name: str) -> Callable[[FollowedTable], FollowerSink]:
    """The factory of a user's class: modules are looked for in the working directory, too.

    Raises:
        InvalidRequest: the message names the class, and what is wrong with it.
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
        raise InvalidRequest(
            f"{name} is no class that derives from ingester.followers.sink.FollowerSink"
        )
    _check(name, found)
    kind: type[FollowerSink] = found
    return lambda table: _made(name, kind, table)


def _imported(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            raise InvalidRequest(
                f"there is no module {exc.name!r}: it has to be installed here, or in the working"
                " directory"
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
            raise InvalidRequest(f"{name}.{method} is no method")
        static = isinstance(inspect.getattr_static(kind, method), staticmethod | classmethod)
        _check_arguments(f"{name}.{method}", call, count + (not static), count)
    _check_arguments(name, kind, 1, 1, "the table that is followed")


def _check_arguments(
    name: str, call: Callable[..., object], given: int, said: int, what: str = ""
) -> None:
    signature = inspect.signature(call)
    if inspect.iscoroutinefunction(call):
        raise InvalidRequest(f"{name} is a coroutine, and sinks are called without a loop")
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
