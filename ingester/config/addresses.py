"""Loopback addresses, as listeners and clients write them.

A name below ``localhost`` counts as loopback only if all its addresses do, as ``/etc/hosts`` or DNS
may map it anywhere. Other names are never looked up, because DNS may change after the check.
"""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Return whether a host is reachable from this machine only. May look it up."""
    name = host.strip("[]")
    if not _is_below_localhost(name):
        return _is_address(name)
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_is_address(str(address[0])) for *_, address in found)


def says_loopback(host: str) -> bool:
    """Return whether a host is written as a loopback address or name, without a lookup."""
    name = host.strip("[]")
    return _is_below_localhost(name) or _is_address(name)


def _is_below_localhost(name: str) -> bool:
    lower = name.lower().rstrip(".")
    return lower == "localhost" or lower.endswith(".localhost")


def _is_address(text: str) -> bool:
    """Whether a text is a loopback address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
