"""HTTP as shipped hooks use it: one call, one answer, bounded in time and size.

Law of this file: whatever does not come back as an answer is :class:`NoAnswer`. A status is an
answer, whichever it is; redirects are followed. Nothing is retried here.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple

from ingester.pushes.contexts import HookContext

MAX_BYTES = 1 << 20
"""A longer answer is cut."""


class NoAnswer(Exception):
    """Nobody answered, or not in time."""


class HttpAnswer(NamedTuple):
    """A status and a body."""

    status: int
    body: bytes

    @property
    def good(self) -> bool:
        """Whether the status is 200 to 299."""
        return 200 <= self.status < 300


def checked_url(key: str, url: str) -> str:
    """Return the URL, or raise ``ValueError`` where it is none of HTTP."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{key}: {url!r} is not http:// or https:// with a host")
    return url


def filled(template: str, context: HookContext) -> str:
    """Return the text with ``{region}``, ``{namespace}``, ``{table}``, ``{push_id}`` filled in."""
    values = {
        "region": context.region or "",
        "namespace": context.push.namespace,
        "table": context.push.table,
        "push_id": context.push.push_id,
    }
    for name, value in values.items():
        template = template.replace("{" + name + "}", value)
    return template


def call(
    url: str, timeout_s: float, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> HttpAnswer:
    """Return the answer to a GET, or to a POST of JSON where there is a body.

    Raises:
        NoAnswer: none came.
    """
    request = urllib.request.Request(url, data=body, headers=dict(headers or {}))
    if body is not None:
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return HttpAnswer(int(answer.status), bytes(answer.read(MAX_BYTES)))
    except urllib.error.HTTPError as exc:
        with exc:
            return HttpAnswer(exc.code, exc.read(MAX_BYTES))
    except (OSError, http.client.HTTPException) as exc:
        reason = getattr(exc, "reason", exc)
        raise NoAnswer(f"{url}: {type(exc).__name__}: {reason}") from exc
