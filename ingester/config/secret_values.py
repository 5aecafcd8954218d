"""Secrets that stand elsewhere: ``env:NAME`` in the environment, ``file:/path`` in a file.

An argument of a command is seen by every account of its machine, and a settings file is often kept
where more people read it than may know a key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ingester.secret_texts import remember

_ELSEWHERE = ("env:", "file:")


def stands_elsewhere(value: object) -> bool:
    """Whether a value says where the secret is, and is not the secret itself."""
    return isinstance(value, str) and value.startswith(_ELSEWHERE)


def secret_value(value: str, environ: Mapping[str, str] | None = None) -> str:
    """The secret that a value names, or the value itself, masked from now on where it is told.

    Args:
        value: ``env:NAME``, ``file:/path``, or anything else.
        environ: the environment; default: this process's.

    Raises:
        ValueError: the variable is not there, or the file cannot be read.
    """
    if not stands_elsewhere(value):
        return value
    kind, _, name = value.partition(":")
    if kind == "env":
        found = (os.environ if environ is None else environ).get(name)
        if found is None:
            raise ValueError(f"the environment has no {name!r}")
    else:
        try:
            found = Path(name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ValueError(str(exc)) from exc
    remember([found])
    return found
