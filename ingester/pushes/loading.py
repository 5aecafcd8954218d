"""Hooks by their names: imported, checked, and their configuration accepted by themselves.

Law of this file: whatever is wrong with a class or a configuration is refused here, by name, before
a push begins, and never in the middle of one.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ingester.pushes.answers import Answer, Decision
from ingester.pushes.contexts import ConfigContext
from ingester.pushes.hooks import LifecycleHooks
from ingester.pushes.methods import METHODS
from ingester.pushes.settings import HookConfigError, HookSettings


class LoadedHook(NamedTuple):
    """A hook's class under its name."""

    name: str
    make: type[LifecycleHooks]


def load_hooks(settings: HookSettings) -> list[LoadedHook]:
    """Return the configured classes, whose configuration they have accepted, overrides included.

    Raises:
        HookConfigError: naming the class, and the table or the key that it is about.
    """
    hooks = [load_hook(name) for name in settings.classes]
    check_overrides(hooks, settings.config, None, {})
    for key, overrides in settings.tables.items():
        namespace, _, table = key.partition("/")
        check_overrides(hooks, settings.config, (namespace, table), overrides)
    return hooks


def load_hook(name: str) -> LoadedHook:
    """Return the class of this name.

    Raises:
        HookConfigError: it cannot be imported, or is no hook.
    """
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as exc:
        raise HookConfigError(f"hook {name}: {type(exc).__name__}: {exc}") from exc
    found = getattr(module, class_name, None)
    if found is None:
        raise HookConfigError(f"hook {name}: module {module_name} has no {class_name!r}")
    if not (isinstance(found, type) and issubclass(found, LifecycleHooks)):
        raise HookConfigError(
            f"hook {name}: it is not a subclass of ingester.pushes.LifecycleHooks"
        )
    for method in METHODS:
        _check_signature(name, method, getattr(found, method))
    return LoadedHook(name, found)


def check_overrides(
    hooks: Sequence[LoadedHook],
    config: Mapping[str, str],
    table: tuple[str, str] | None,
    overrides: Mapping[str, str],
) -> None:
    """Ask each hook whether a table may have these overrides; none for the common configuration.

    Raises:
        HookConfigError: naming the hook that has refused, and the table.
    """
    where = "hooks.config" if table is None else f'hooks.tables."{table[0]}/{table[1]}"'
    _check_keys(hooks, config if table is None else overrides, where)
    namespace, name = table or (None, None)
    context = ConfigContext(namespace=namespace, table=name, overrides=dict(overrides))
    for hook in hooks:
        try:
            made = hook.make({**config, **overrides})
            answer: object = made.validate_hook_config(context)
        except Exception as exc:
            raise HookConfigError(f"{where}: {hook.name}: {type(exc).__name__}: {exc}") from exc
        if not isinstance(answer, Answer) or answer.decision not in (
            Decision.PROCEED,
            Decision.ABORT,
        ):
            raise HookConfigError(f"{where}: {hook.name}: it has answered {answer!r}")
        if answer.decision is Decision.ABORT:
            raise HookConfigError(f"{where}: {hook.name}: {answer.reason or 'refused'}")


def _check_keys(hooks: Sequence[LoadedHook], keys: Mapping[str, str], where: str) -> None:
    """Refuse what no hook knows, where all of them say what they know."""
    known: set[str] = set()
    for hook in hooks:
        if hook.make.options is None:
            return
        known |= set(hook.make.options)
    strays = sorted(set(keys) - known)
    if strays:
        raise HookConfigError(
            f"{where}: no hook knows {', '.join(strays)}; known are {', '.join(sorted(known))}"
        )


def _check_signature(name: str, method: str, function: object) -> None:
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise HookConfigError(f"hook {name}: {method} is no plain function")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as exc:
        raise HookConfigError(
            f"hook {name}: {method}{inspect.signature(function)} is called with a context ({exc})"
        ) from exc
