"""Good and bad user-defined hooks for the tests of this folder."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ingester.pushes import (
    PROCEED,
    Answer,
    ConfigContext,
    HookContext,
    LifecycleHooks,
    abort,
    rollback,
    wait,
)
from ingester.pushes.hooks import METHODS

let_go = threading.Event()
running: list[str] = []
most: list[int] = [0, 0]
made: list[int] = []
failures: list[int] = [0]


class Gate(LifecycleHooks):
    """Waits until ``gate.open``."""

    options: ClassVar[Mapping[str, str] | None] = {"gate.open": "yes or no"}

    def __init__(self, config: Mapping[str, str]) -> None:
        super().__init__(config)
        made.append(id(self))

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        said = self.config.get("gate.open", "no")
        return PROCEED if said in ("yes", "no") else abort(f"gate.open: {said!r} is neither")

    def pre_version_swap(self, context: HookContext) -> Answer:
        return PROCEED if self.config.get("gate.open") == "yes" else wait("the gate is shut")


class Raises(LifecycleHooks):
    """A hook with a bug."""

    def pre_version_swap(self, context: HookContext) -> Answer:
        raise ZeroDivisionError("oh")

    def post_version_swap(self, context: HookContext) -> Answer:
        raise SystemExit(3)


class Naps(LifecycleHooks):
    """Takes a while before a generation is created."""

    def pre_version_creation(self, context: HookContext) -> Answer:
        let_go.wait(0.05)
        return PROCEED


class Recovers(LifecycleHooks):
    """A hook that fails as often as ``failures`` says."""

    def post_version_swap(self, context: HookContext) -> Answer:
        if failures[0]:
            failures[0] -= 1
            raise ConnectionError("not now")
        return PROCEED


class Hangs(LifecycleHooks):
    """Does not return until the test releases it."""

    def pre_version_swap(self, context: HookContext) -> Answer:
        let_go.wait(60)
        return PROCEED


class SaysWhatItMayNot(LifecycleHooks):
    """Returns answers that its methods do not allow."""

    def pre_start_of_push_job(self, context: HookContext) -> Answer:
        return wait("for ever")

    def post_version_creation(self, context: HookContext) -> Any:
        return abort("too late")

    def pre_version_swap(self, context: HookContext) -> Any:
        return None

    def post_version_swap(self, context: HookContext) -> Any:
        return True


class SaysNonsense(LifecycleHooks):
    """Returns answers, errors and reasons of wrong types."""

    def pre_version_swap(self, context: HookContext) -> Any:
        answers: dict[str, Callable[[], Any]] = {
            "text": lambda: Answer("abort", "x"),  # type: ignore[arg-type]
            "number": lambda: abort(17),  # type: ignore[arg-type]
            "nothing": lambda: wait(None),  # type: ignore[arg-type]
            "error": lambda: 1 / 0,
            "unshown": Unshown,
            "raised": lambda: UnshownError(),
            "no_unicode": lambda: abort("file \udc80 \x1b[31m is bad"),
            "long": lambda: abort("x" * 2000),
        }
        return answers[context.push.table]()


class Unshown:
    """An object that cannot be converted to text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class UnshownError(Unshown, Exception):
    """An error that cannot be converted to text."""


class Meets(LifecycleHooks):
    """Counts how many calls run at the same time."""

    def pre_version_swap(self, context: HookContext) -> Answer:
        running.append(context.push.table)
        most[0] = max(most[0], len(running))
        most[1] = max(most[1], running.count(context.push.table))
        let_go.wait(0.02)
        running.remove(context.push.table)
        return PROCEED


class Sits(LifecycleHooks):
    """Blocks in the call that the file ``stop`` of its folder names, until the file changes.

    It creates a file for each call, such as ``pre_version_swap.b``. In the call that
    ``sits.bad`` names it answers rollback.
    """

    options: ClassVar[Mapping[str, str] | None] = {"sits.folder": "a path", "sits.bad": "a call"}

    def __getattribute__(self, name: str) -> Any:
        if name.startswith(("pre_", "post_")):
            return lambda context: self._sits(context)
        return super().__getattribute__(name)

    def _sits(self, context: HookContext) -> Answer | None:
        call = f"{context.method}.{context.region or ''}".rstrip(".")
        folder = Path(self.config["sits.folder"])
        (folder / call).touch()
        while (folder / "stop").read_text() == call:
            time.sleep(0.01)
        if call == self.config.get("sits.bad"):
            return rollback("bad")
        return PROCEED if METHODS[context.method].answers else None


class CannotBeMade(LifecycleHooks):
    """A hook whose constructor fails."""

    def __init__(self, config: Mapping[str, str]) -> None:
        raise OSError("no model there")


class NeverMade(LifecycleHooks):
    """A hook whose constructor does not return."""

    def __init__(self, config: Mapping[str, str]) -> None:
        if "sits.folder" in config:
            (Path(config["sits.folder"]) / "never_made").touch()
        let_go.wait(600)


class NeverValid(LifecycleHooks):
    """A hook whose ``validate_hook_config`` does not return."""

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        let_go.wait(600)
        return PROCEED


class ExitsWhenMade(LifecycleHooks):
    """A hook whose constructor ends the program."""

    def __init__(self, config: Mapping[str, str]) -> None:
        sys.exit(0)


class ExitsWhenChecked(LifecycleHooks):
    """A hook whose ``validate_hook_config`` ends the program."""

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        raise KeyboardInterrupt


class OddOptions(LifecycleHooks):
    """A hook that declares its keys wrongly."""

    options: ClassVar[Any] = ["delay"]


class WrongSignature(LifecycleHooks):
    """A hook whose method takes too few arguments."""

    def pre_version_swap(self) -> Answer:  # type: ignore[override]
        return PROCEED


class NoHook:
    """A class that is no hook."""
