"""Addresses of this machine alone: what they are, as listeners and clients write them.

Law of this file: a name is believed by its addresses. ``/etc/hosts`` or a server of names may give
any address to ``localhost`` and what ends in it, so all of them are looked at. Other names are not
even looked up: they may lead elsewhere a moment later.
"""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach, or be reached at, the host. May look it up."""
    name = host.strip("[]")
    if not _is_below_localhost(name):
        return _is_address(name)
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_is_address(str(address[0])) for *_, address in found)


def says_loopback(host: str) -> bool:
    """Return whether the host is written as one of the loopback. Nothing is looked up."""
    name = host.strip("[]")
    return _is_below_localhost(name) or _is_address(name)


def _is_below_localhost(name: str) -> bool:
    lower = name.lower().rstrip(".")
    return lower == "localhost" or lower.endswith(".localhost")


def _is_address(text: str) -> bool:
    """Whether a text is an address of the loopback."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
