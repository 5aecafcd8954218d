"""A daemon that requires tokens, and clients with and without them."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.flight as fl

from tests.drivers.daemon import Daemon, Launch
from tests.drivers.tokens import Tokens

NAMES = {
    "rw": ["shop:read,write"],
    "reads": ["shop:read"],
    "writes": ["shop:write"],
    "chief": ["shop:admin"],
    "other": ["other:read,write,admin"],
    "root": ["*:admin"],
}


class Secured:
    """A daemon with tokens for :data:`NAMES`."""

    def __init__(self, daemon: Daemon, tokens: Tokens, audit: Path) -> None:
        self.daemon = daemon
        self.tokens = tokens
        self.audit_file = audit

    @classmethod
    def start(cls, folder: Path, **settings: object) -> Secured:
        """Create the tokens and start the daemon."""
        tokens = Tokens(folder / "tokens.json")
        for name, grants in NAMES.items():
            tokens.add(name, *grants)
        audit = folder / "audit.jsonl"
        settings = {"audit__file": str(audit)} | settings
        daemon = Launch(
            folder / "data", {}, (), {"auth__tokens": str(tokens.path), **settings}
        ).start()
        return cls(daemon, tokens, audit)

    def client(self, name: str | None) -> fl.FlightClient:
        """A connection with the token of this name, or without any."""
        secret = None if name is None else self.tokens.secret[name]
        return connect(self.daemon.flight, secret)

    def http(
        self, path: str, name: str | None = None, method: str = "GET", **headers: str
    ) -> tuple[int, Any]:
        """The status and JSON body of a request without a body."""
        if name is not None:
            headers["Authorization"] = f"Bearer {self.tokens.secret[name]}"
        request = urllib.request.Request(self.daemon.http + path, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                body = answer.read()
                is_json = answer.headers["content-type"] == "application/json"
                return answer.status, json.loads(body) if is_json else body
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def reload(self) -> None:
        """Send SIGHUP, so that the daemon reads the tokens again."""
        self.daemon.process.send_signal(signal.SIGHUP)

    def audited(self) -> list[dict[str, Any]]:
        """The lines of the audit log."""
        return [json.loads(line) for line in self.audit_file.read_text().splitlines()]


class _Bearer(fl.ClientMiddleware):  # type: ignore[misc]
    def __init__(self, values: Sequence[str]) -> None:
        super().__init__()
        self._values = list(values)

    def sending_headers(self) -> dict[str, list[str]]:
        return {"authorization": self._values}


class Shows(fl.ClientMiddlewareFactory):  # type: ignore[misc]
    """Middleware that sends these ``authorization`` values with every call."""

    def __init__(self, values: Sequence[str]) -> None:
        super().__init__()
        self._values = values

    def start_call(self, info: object) -> _Bearer:
        return _Bearer(self._values)


def connect(url: str, token: str | None, *more: str) -> fl.FlightClient:
    """A connection whose calls carry the token; ``more`` adds further header values."""
    if token is None:
        return fl.connect(url)
    return fl.connect(url, middleware=[Shows([f"Bearer {token}", *more])])
