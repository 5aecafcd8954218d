"""Whether a browser's request was meant for this daemon, by its Host header.

A page of another site can have its own name lead to this daemon's address (DNS rebinding), and then
reads the answers as its own. Its browser still says that name. An address in the place of a name is
no such page's, and needs no setting.

Law of this file: pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection


class Hosts:
    """The names by which this daemon may be asked.

    Args:
        names: those of the settings, and its own; one with a dot in front is all names below it.
    """

    def __init__(self, names: Collection[str]) -> None:
        lower = {name.lower().rstrip(".") for name in names if name}
        self._names = {"localhost"} | {name for name in lower if not name.startswith(".")}
        self._below = (".localhost", *sorted(name for name in lower if name.startswith(".")))

    def allow(self, host: str) -> bool:
        """Say whether a Host header is an address, or one of the names."""
        name = _name_of(host)
        if _is_address(name):
            return True
        return name in self._names or name.endswith(self._below)


def _name_of(host: str) -> str:
    """The name, or the address, without the port."""
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.rpartition(":")[0].lower().rstrip(".") if ":" in host else host.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
