"""Override name resolution, as an entry in ``/etc/hosts`` does."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest


def leads_to(monkeypatch: pytest.MonkeyPatch, name: str, addresses: Sequence[str]) -> None:
    """Make a name resolve to these addresses in this process; to none means unknown."""
    real = socket.getaddrinfo

    def looked_up(host: object, port: object, *more: object, **named: object) -> object:
        if host != name:
            return real(host, port, *more, **named)  # type: ignore[arg-type]
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each,))
            for each in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
