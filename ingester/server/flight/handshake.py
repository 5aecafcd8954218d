"""The Handshake of Flight, which drivers call before the first call if they have credentials.

    authorization: Bearer TOKEN      JDBC's ``token``: the token is checked
    authorization: Basic NAME:TOKEN  a user name and a password: the answer has the header that the
                                     driver sends with later calls

Nothing is kept: each call is admitted by its own header.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import pyarrow.flight as fl


class Greeter(fl.ServerAuthHandler):  # type: ignore[misc]
    """Accepts every handshake; middleware has checked its header."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """End the handshake."""

    def is_valid(self, token: bytes) -> bytes:
        """Accept the call: this token is one of the handshake, which gives none."""
        return b""


def as_bearer(header: Sequence[str]) -> list[str]:
    """Return an ``authorization`` header with Basic credentials as one with the password.

    Others are returned as they are.
    """
    found = list(header)
    scheme, _, encoded = found[0].strip().partition(" ") if len(found) == 1 else ("", "", "")
    if scheme.lower() != "basic":
        return found
    try:
        _, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return found
    return [f"Bearer {password}"]
