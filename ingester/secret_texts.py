"""Masking secrets in settings, logs, errors, tracebacks and the status.

A secret is recognized by its form (credentials in a URL, a token of ours, a bearer header,
``password=…``, a signature) or by its value, if this process was given it. In doubt, text is
masked.
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
"""Options with such a name are never shown."""
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
        "type",
        "uri",
        "warehouse",
        "ServerSideEncryption",
        "StorageClass",
    ]
)
"""Options whose values are shown. Other libraries' names for secrets are not all known."""
_SHORTEST = 8
"""Shorter values are not remembered: masking them would hide parts of words."""
_MOST = 1000
"""Limit on remembered values."""
_FORMS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # user:password@, even with '/' or '@' in the password. A port or a path is not a password.
    # Bounded, so that repeated "a://a:" does not make the match quadratic.
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
    # Headers as libraries log them at level debug: name: value, or a dict of bytes.
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
"""Values given to this process, longest first."""


def remember(values: Iterable[object]) -> None:
    """Mask these values from now on. Thread-safe.

    Args:
        values: strings, also inside lists and mappings; other values are ignored.
    """
    global _known
    texts = [text for text in _texts(values) if len(text) >= _SHORTEST and text not in _known]
    if texts:
        # A new dict, so that readers see either the old or the new one.
        kept = sorted([*_known, *texts], key=len, reverse=True)
        _known = dict.fromkeys(kept[:_MOST])


def remember_options(options: Mapping[str, Any]) -> None:
    """Remember the values of options with secret names, at any depth."""
    for name, value in options.items():
        if SECRET_NAME.search(name):
            remember([value])
        elif isinstance(value, Mapping):
            remember_options(value)


def masked(text: str) -> str:
    """Return the text with all known or recognizable secrets masked."""
    for value in _known:
        if value in text:
            text = text.replace(value, MASK)
    if any(mark in text for mark in ("=", ":", " ", "_")):
        for form, instead in _FORMS:
            text = form.sub(instead, text)
    return text


def masked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for display: numbers, and strings whose names are known to be harmless.

    A string under another name may be a secret that only its library recognizes.
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
