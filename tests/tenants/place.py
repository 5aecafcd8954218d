"""A daemon as an operator would run it for tenants who do not trust each other.

Nothing is a stand-in: certificates are real, tokens come from the command line, and a memory
limit kills where the machine has cgroups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ingester.client import Client
from tests.drivers.daemon import Daemon
from tests.drivers.secured import Secured

CGROUPS = Path("/sys/fs/cgroup/memory")
MIB = 1 << 20
QUOTAS: dict[str, object] = {
    "quotas__bytes_per_s": "4MiB",
    "quotas__requests_per_s": 50,
    "quotas__partitions": 1_000,
    "quotas__tables": 200,
    "quotas__streams": 20,
    "quotas__buffer_bytes": "64MiB",
}
"""The limits of each tenant: some ten times the use of a well-behaved one."""


@dataclass(frozen=True)
class Place:
    """The daemon, and the credentials of all tenants.

    Attributes:
        secured: Its certificate and the tokens; None without TLS.
        kills_at: Bytes of memory at which the daemon is killed.
    """

    daemon: Daemon
    secured: Secured | None
    kills_at: int

    def client(self, tenant: str) -> Client:
        """Make a client of a tenant."""
        options = None if self.secured is None else self.secured.options(tenant)
        return Client(self.daemon.flight, options=options)

    @property
    def peak_bytes(self) -> int:
        """Peak memory of the daemon."""
        for line in Path(f"/proc/{self.daemon.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0


@contextmanager
def secure_place(
    folder: Path, tenants: Sequence[str], *, limit_bytes: int, kills_at: int, plain: bool = False
) -> Iterator[Place]:
    """Start a daemon in which each tenant may use its own namespace.

    Args:
        limit_bytes: The daemon's own ``memory.limit``.
        kills_at: The memory at which it is killed.
        plain: Without TLS and tokens, to measure their cost.
    """
    secured, settings = None, dict[str, object]()
    if not plain:
        secured = Secured(folder, {name: f"{name}:read,write" for name in tenants})
        settings = {**QUOTAS, **secured.settings, "audit__file": folder / "audit.jsonl"}
    daemon = Daemon.start(
        folder / "d", memory__limit=str(limit_bytes), persist__max_age="20s", **cast(Any, settings)
    )
    with daemon, _killing(daemon, kills_at):
        yield Place(daemon, secured, kills_at)


@contextmanager
def _killing(daemon: Daemon, kills_at: int) -> Iterator[None]:
    """Put the daemon under a limit that the kernel enforces, where possible."""
    group = CGROUPS / f"ingester-tenants-{daemon.pid}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(kills_at))
        (group / "cgroup.procs").write_text(str(daemon.pid))
    except OSError:
        group = Path()
    try:
        yield
    finally:
        daemon.kill()
        if group != Path():
            group.rmdir()


__all__ = ["MIB", "Place", "secure_place"]
