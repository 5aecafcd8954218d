"""The environment of a run, which its numbers depend on."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import pyarrow as pa


def describe_machine(folder: Path) -> dict[str, Any]:
    """Processors, load, disk and versions, with the time; ``folder`` selects the disk."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpus": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "disk": _file_system(folder),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "kernel": platform.release(),
    }


def _file_system(folder: Path) -> str:
    """Return the type of the file system that a folder is on: a sync of tmpfs means nothing."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mounted, found, *_ = line.split()
        if folder.resolve().is_relative_to(mounted) and len(mounted) >= len(best):
            best, kind = mounted, found
    return kind
