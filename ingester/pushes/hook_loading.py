"""Loads the configured hook classes, and lets each check its configuration.

    hooks.classes ─▶ imported ─▶ subclasses of ``LifecycleHooks`` with fitting methods
    hooks.config, hooks.tables ─▶ ``validate_hook_config``, for all tables and for each

Errors in classes and configurations are found here, before a push starts. No user code runs in the
caller's thread: importing a module, making an instance and checking a configuration have the time
limit of a call. Tried by tests/pushes/test_hook_config.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ingester.pushes.config import HookConfigError, HookSettings
from ingester.pushes.hook_calls import HookTally, error_text, judged, said_within, shown
from ingester.pushes.hooks import (
    METHODS,
    Answer,
    ConfigContext,
    Decision,
    LifecycleHooks,
    readable,
)

_FORMER_NAME = "ingester.lifecycle.shipped."
"""Shipped hooks are in one module now; configurations with their former names stay valid."""


class LoadedHook(NamedTuple):
    """A hook class under its configured name."""

    name: str
    make: type[LifecycleHooks]

    def enabled(self, config: Mapping[str, str]) -> bool:
        """Return whether a configuration enables it."""
        return self.make.enabled_by is None or bool(config.get(self.make.enabled_by))


def load_hooks(settings: HookSettings, tally: HookTally | None = None) -> list[LoadedHook]:
    """Return the configured classes, after each has accepted its configuration and overrides.

    Args:
        tally: counts the calls of ``validate_hook_config``.

    Raises:
        HookConfigError: naming the class, and the table or key.
    """
    hooks = [load_hook(name, settings.timeout) for name in settings.classes]
    tally = tally or HookTally()
    check_overrides(hooks, settings, None, {}, tally)
    for key, overrides in settings.tables.items():
        namespace, _, table = key.partition("/")
        check_overrides(hooks, settings, (namespace, table), overrides, tally)
    for hook in not_enabled(hooks, settings):
        _refuse_without_effect(hook, settings.config, "hooks.config")
    return hooks


def not_enabled(hooks: Sequence[LoadedHook], settings: HookSettings) -> list[LoadedHook]:
    """Return the hooks that are called for no table, because nothing enables them."""
    scopes = [settings.config, *settings.tables.values()]
    return [hook for hook in hooks if not any(hook.enabled(scope) for scope in scopes)]


def load_hook(name: str, timeout_s: float = HookSettings().timeout) -> LoadedHook:
    """Return the class ``package.module:Class``.

    Raises:
        HookConfigError: it cannot be imported, or is not a hook.
    """
    module_name, _, class_name = name.partition(":")
    if module_name.startswith(_FORMER_NAME):
        module_name = "ingester.pushes.shipped"
    found = said_within(
        lambda: getattr(importlib.import_module(module_name), class_name, None), timeout_s
    )
    if isinstance(found, BaseException):
        raise HookConfigError(f"hook {name}: its import failed: {error_text(found)}") from found
    if found is None:
        raise HookConfigError(f"hook {name}: module {module_name} has no {class_name!r}")
    if not (isinstance(found, type) and issubclass(found, LifecycleHooks)):
        raise HookConfigError(
            f"hook {name}: it is not a subclass of ingester.pushes.LifecycleHooks"
        )
    for method in METHODS:
        _check_signature(name, method, getattr(found, method))
    if found.options is not None and not isinstance(found.options, Mapping):
        raise HookConfigError(f"hook {name}: options is {shown(found.options)}, not a mapping")
    return LoadedHook(name, found)


def check_overrides(
    hooks: Sequence[LoadedHook],
    settings: HookSettings,
    table: tuple[str, str] | None,
    overrides: Mapping[str, str],
    tally: HookTally,
) -> None:
    """Let each hook check a table's overrides; ``table`` is None for the configuration of all.

    Raises:
        HookConfigError: naming the hook that refuses, and the table.
    """
    method = "validate_hook_config"
    where = "hooks.config" if table is None else f'hooks.tables."{table[0]}/{table[1]}"'
    config = settings.config
    _check_keys(hooks, config if table is None else overrides, where)
    namespace, name = table or (None, None)
    context = ConfigContext(namespace=namespace, table=name, overrides=dict(overrides))
    for hook in hooks:
        if not hook.enabled({**config, **overrides}):
            # The keys of all tables are checked with those of the tables that enable it.
            _refuse_without_effect(hook, overrides, where)
            continue
        work = partial(_validated, hook.make, {**config, **overrides}, context)
        began = time.monotonic()
        answer = said_within(work, settings.timeout)
        outcome, _ = judged(METHODS[method], answer)
        tally.add(hook.name, method, outcome, 0.0, time.monotonic() - began)
        if isinstance(answer, BaseException):
            error = f"its constructor or validate_hook_config failed: {error_text(answer)}"
            raise HookConfigError(f"{where}: {hook.name}: {error}") from answer
        if not isinstance(answer, Answer) or answer.decision not in (
            Decision.PROCEED,
            Decision.ABORT,
        ):
            raise HookConfigError(f"{where}: {hook.name}: the answer is {shown(answer)}")
        if answer.decision is Decision.ABORT:
            reason = readable(answer.reason) or "refused"
            raise HookConfigError(f"{where}: {hook.name}: {reason}")


def _refuse_without_effect(hook: LoadedHook, keys: Mapping[str, str], where: str) -> None:
    """Refuse keys of a hook that is not enabled."""
    enabled_by = hook.make.enabled_by
    idle = sorted(key for key in set(keys) & set(hook.make.options or ()) if key != enabled_by)
    if idle:
        raise HookConfigError(
            f"{where}: {hook.name}: {', '.join(idle)} without effect: {enabled_by} is not set"
        )


def _validated(
    make: type[LifecycleHooks], config: dict[str, str], context: ConfigContext
) -> object:
    return make(config).validate_hook_config(context)


def _check_keys(hooks: Sequence[LoadedHook], keys: Mapping[str, str], where: str) -> None:
    """Refuse keys that no hook knows, if all of them declare their keys."""
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
        raise HookConfigError(f"hook {name}: {method} is not a plain function")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as exc:
        raise HookConfigError(
            f"hook {name}: {method}{inspect.signature(function)} does not take a context ({exc})"
        ) from exc
