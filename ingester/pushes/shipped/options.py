"""Reads the configuration of shipped hooks: texts in, values out, ``ValueError`` naming the key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import timedelta

from ingester.config.units import parse_duration
from ingester.pushes.hooks import PROCEED, Answer, abort


def required(config: Mapping[str, str], key: str) -> str:
    """Return the text of a required key."""
    if not config.get(key):
        raise ValueError(f"{key} is not set")
    return config[key]


def duration(config: Mapping[str, str], key: str, default: str) -> timedelta:
    """Return a duration such as ``15m``."""
    try:
        return timedelta(seconds=parse_duration(config.get(key, default)))
    except (ValueError, OverflowError) as exc:
        raise ValueError(f"{key}: {exc}") from exc


def number(config: Mapping[str, str], key: str, default: float | None = None) -> float | None:
    """Return a finite number of at least 0; ``default`` if the key is missing."""
    text = config.get(key)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"{key}: {text!r} is not a number of 0 or more")
    return value


def choice(config: Mapping[str, str], key: str, default: str, *others: str) -> str:
    """Return one of a few words."""
    said = config.get(key, default)
    if said not in (default, *others):
        raise ValueError(f"{key}: {said!r} is none of {', '.join((default, *others))}")
    return said


def checked(read: Callable[[], object]) -> Answer:
    """Return proceed if ``read`` succeeds, otherwise abort with its error."""
    try:
        read()
    except ValueError as exc:
        return abort(str(exc))
    return PROCEED
