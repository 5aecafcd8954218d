"""Secrets by reference: ``env:NAME`` in the environment, ``file:/path`` in a file.

Every account of a machine can read a command's arguments, and a settings file may be readable by
people who must not know a key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ingester.secret_texts import remember

_ELSEWHERE = ("env:", "file:")


def stands_elsewhere(value: object) -> bool:
    """Return whether a value is a reference to a secret rather than the secret."""
    return isinstance(value, str) and value.startswith(_ELSEWHERE)


def secret_value(value: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the secret that a value refers to, or the value itself. The secret is masked in logs.

    Args:
        value: ``env:NAME``, ``file:/path``, or anything else.
        environ: the environment; default: this process's.

    Raises:
        ValueError: the variable is not set, or the file cannot be read.
    """
    if not stands_elsewhere(value):
        return value
    kind, _, name = value.partition(":")
    if kind == "env":
        found = (os.environ if environ is None else environ).get(name)
        if found is None:
            raise ValueError(f"environment variable {name!r} is not set")
    else:
        try:
            found = Path(name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ValueError(str(exc)) from exc
    remember([found])
    return found
