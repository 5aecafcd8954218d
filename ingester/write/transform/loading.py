"""Loads a class by its name: checks that it is allowed, imports and checks it, finds its version.

Only classes named by this daemon's settings or matched by ``transform.allowed`` are imported: a
request, or a manifest written by another daemon, must not choose which code runs here. A loaded
class stays until the process ends (tests/write/transform/test_transforming).
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ingester.config.settings import TRANSFORMER_NAME
from ingester.errors import NotAvailable
from ingester.transform import RowTransformer, Transformer
from ingester.write.transform.pool import GivenUp, TransformPool, UserCodeFailed

IMPORT_S = 60.0
"""The limit of a module's import."""
_OURS = "ingester.transform"


class LoadedTransformer(NamedTuple):
    """A transformer's class."""

    name: str
    make: type[Transformer]
    version: str


class TransformerLoader:
    """Loads classes, each once. Any thread but the loop's.

    Args:
        trusted: names of classes in the settings of tables.
        allowed: patterns of modules; see ``transform.allowed``.
    """

    def __init__(
        self, pool: TransformPool, trusted: Collection[str], allowed: Collection[str]
    ) -> None:
        self._pool = pool
        self._trusted = frozenset(trusted)
        self._allowed = tuple(allowed)
        self._loaded: dict[str, LoadedTransformer] = {}

    def load(self, name: str) -> LoadedTransformer:
        """Return the class of this name.

        Raises:
            NotAvailable: it is not allowed, cannot be imported, or is not a transformer.
            TooSlow, Saturated: see :class:`TransformPool`.
        """
        loaded = self._loaded.get(name)
        if loaded is not None:
            return loaded
        self.check_allowed(name)
        try:
            loaded = self._pool.run(
                name, lambda: _load(name), timeout_s=max(IMPORT_S, self._pool.timeout_s)
            )
        except UserCodeFailed as exc:
            raise NotAvailable(f"transformer {name}: {_reason(exc.error)}") from None
        except GivenUp as exc:
            raise exc.refusal from None
        return self._loaded.setdefault(name, loaded)

    def check_allowed(self, name: str) -> None:
        """Raise ``NotAvailable`` for an invalid name or a class that may not be loaded."""
        if not TRANSFORMER_NAME.fullmatch(name):
            raise NotAvailable(f"transformer {name!r} is not package.module:Class")
        module = name.partition(":")[0]
        if name not in self._trusted and not any(
            fnmatchcase(module, pattern) for pattern in self._allowed
        ):
            raise NotAvailable(
                f"transformer {name}: this daemon does not allow it; module {module} is not in"
                " transform.allowed, and no [tables] of its settings names the class"
            )


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, _NoTransformer) else f"{type(error).__name__}: {error}"


class _NoTransformer(Exception):
    """The object found by a name is not a transformer."""


def _load(name: str) -> LoadedTransformer:
    module_name, _, class_name = name.partition(":")
    module = importlib.import_module(module_name)
    found = getattr(module, class_name, None)
    if found is None:
        raise _NoTransformer(f"module {module_name} has no {class_name!r}")
    if not (isinstance(found, type) and issubclass(found, Transformer)):
        raise _NoTransformer("it is not a subclass of ingester.transform.Transformer")
    _check_signatures(found)
    return LoadedTransformer(name, found, _version(found, module))


def _check_signatures(found: type[Transformer]) -> None:
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise _NoTransformer(f"it has no {', '.join(missing)}")
    _check_call("the constructor", found, 0)
    methods = {"transform": 1, "output_schema": 1, "close": 0}
    if issubclass(found, RowTransformer):
        methods["transform_row"] = 1
    for method, count in methods.items():
        _check_call(method, getattr(found, method), count + 1)


def _check_call(what: str, function: object, count: int) -> None:
    """Check that a function takes ``count`` arguments, with ``self``, and is not a coroutine."""
    if not callable(function):
        raise _NoTransformer(f"{what} is {type(function).__name__}, not a method")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise _NoTransformer(f"{what} must be a plain function, not a coroutine or a generator")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a function in C does not say
    try:
        signature.bind(*[None] * count)
    except TypeError as exc:
        arguments = count if what == "the constructor" else count - 1
        raise _NoTransformer(
            f"{what} has the wrong signature {signature}: it is called with {arguments or 'no'}"
            f" argument{'s' * (arguments != 1)} ({exc})"
        ) from exc


def _version(found: type[Transformer], module: ModuleType) -> str:
    """Return the class's version, else a hash of its files and those of its bases."""
    version = found.version
    if version is not None:
        _check_version(version)
        return version
    digest = hashlib.sha256()
    for content in _sources(found, module):
        digest.update(content)
    return f"sha256:{digest.hexdigest()[:16]}"


def _check_version(version: object) -> None:
    if not isinstance(version, str) or not 0 < len(version) <= 128:
        raise _NoTransformer(f"version {version!r} is not a text of 1 to 128 characters")


def _sources(found: type[Transformer], module: ModuleType) -> Iterator[bytes]:
    """Return the files of the class, of its bases, and of the module that names it."""
    names = [each.__module__ for each in found.__mro__] + [module.__name__]
    for name in dict.fromkeys(names):
        if name in ("abc", "builtins", "typing") or name.startswith(_OURS):
            continue
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None:
            raise _NoTransformer(f"module {name} has no file to tell its version by: set version")
        yield Path(file).read_bytes()
