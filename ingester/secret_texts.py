"""Secrets kept out of what is told: settings, logs, errors, tracebacks, the status.

Law of this file: a secret is known by its form (credentials in a URL, a token of ours, a bearer
header, ``password=…``, a signature) or by its value, where this process was given it. Rather too
much is masked than too little. Nothing here can be turned back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MASK = "***"
SECRET_NAME = re.compile(
    r"secret|passw|token|credential|signature|authorization|cookie|sas($|_)|(^|_)key($|_)",
    re.IGNORECASE,
)
"""Names of options whose values are never shown."""
SHOWN_OPTIONS = frozenset(
    [
        "endpoint_url",
        "region",
        "region_name",
        "profile",
        "addressing_style",
        "signature_version",
        "account_name",
        "project",
        "host",
        "hostname",
        "protocol",
        "ServerSideEncryption",
        "StorageClass",
    ]
)
"""Options of a store whose texts are shown; other libraries' names of secrets are not all known."""
_SHORTEST = 8
"""A shorter value is no secret worth the name, and would mask parts of words."""
_MOST = 1000
"""The values that are remembered: a process is given few."""
_FORMS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # user:password@, also with '/' or '@' in the password; a port and a path are no password.
    # Bounded: a text of "a://a:" again and again would be looked through to its end each time.
    (
        re.compile(r"(\w://)[^\s/@:'\"]{0,128}:(?!\d{1,5}(?:[/?#,]|$))[^\s'\"]{0,256}@"),
        rf"\1{MASK}@",
    ),
    (re.compile(r"(\w://)[^/@\s'\"]+@"), rf"\1{MASK}@"),
    (re.compile(r"\b(igt_[A-Za-z0-9]+_)[A-Za-z0-9_-]+"), rf"\1{MASK}"),
    (
        re.compile(r"\b(bearer|authorization\W{1,4}basic)\s[\w.~+/=-]{16,}", re.IGNORECASE),
        rf"\1 {MASK}",
    ),
    (
        re.compile(
            r"\b(passw(?:or)?d|sslpassword|secret|aws_secret_access_key|x-amz-signature"
            r"|x-amz-security-token|x-amz-credential|signature|sig)=(?:'(?:[^'\\]|\\.)*'?|[^\s&'\"]+)",
            re.IGNORECASE,
        ),
        rf"\1={MASK}",
    ),
    # Headers as libraries log them at the level debug: name: value, or as a dict of bytes.
    (
        re.compile(
            r"\b(x-amz-security-token|[\w-]{0,64}customer-key|set-cookie|cookie)"
            r"(['\"]?\s{0,4}:\s{0,4}b?['\"]?)[^\s'\",}]{1,8192}",
            re.IGNORECASE,
        ),
        rf"\1\2{MASK}",
    ),
)
_known: dict[str, None] = {}
"""Values that this process was given, the longest first."""


def remember(values: Iterable[object]) -> None:
    """Mask these values from now on, wherever they would be told. Any thread.

    Args:
        values: texts are taken, and those in lists and mappings; all else is no secret.
    """
    global _known
    texts = [text for text in _texts(values) if len(text) >= _SHORTEST and text not in _known]
    if texts:
        # A new dict: readers see the one or the other.
        kept = sorted([*_known, *texts], key=len, reverse=True)
        _known = dict.fromkeys(kept[:_MOST])


def remember_options(options: Mapping[str, Any]) -> None:
    """Remember those values of options that are secret by their name, at any depth."""
    for name, value in options.items():
        if SECRET_NAME.search(name):
            remember([value])
        elif isinstance(value, Mapping):
            remember_options(value)


def masked(text: str) -> str:
    """Return the text without any secret that is known by value or by form."""
    for value in _known:
        if value in text:
            text = text.replace(value, MASK)
    if any(mark in text for mark in ("=", ":", " ", "_")):
        for form, instead in _FORMS:
            text = form.sub(instead, text)
    return text


def masked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as they may be shown: numbers, and texts whose names are known to be harmless.

    A text of another name may be a secret that only its library knows as one.
    """
    shown: dict[str, Any] = {}
    for name, value in options.items():
        if SECRET_NAME.search(name):
            shown[name] = MASK
        elif isinstance(value, Mapping):
            shown[name] = masked_options(value)
        elif value is None or isinstance(value, bool | int | float):
            shown[name] = value
        else:
            shown[name] = masked(str(value)) if name in SHOWN_OPTIONS else MASK
    return shown


def _texts(values: Iterable[object]) -> Iterable[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _texts(value.values())
        elif isinstance(value, list | tuple):
            yield from _texts(value)
