"""The memory that this process may use, and the memory that it has in RAM.

A container sees all of the machine's RAM in ``sysconf``, but its control group kills it far below.
The smallest limit on the way up the group tree counts.
"""

import os
from pathlib import Path

FALLBACK_BYTES = 2 * 1024**3  # where the system tells neither


OWN_GROUPS = Path("/proc/self/cgroup")
GROUP_TREE = Path("/sys/fs/cgroup")


_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the bytes of this process that are in RAM; 0 where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def usable_bytes(proc: Path = OWN_GROUPS, root: Path = GROUP_TREE) -> int:
    """Return the bytes of RAM for this process: physical RAM, or a control group's limit."""
    return min([*_group_limits(proc, root), _physical_bytes()])


def _physical_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return FALLBACK_BYTES


def _group_limits(proc: Path, root: Path) -> list[int]:
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":  # version 2: one tree
            limits += _walk(root, group, "memory.max")
        elif "memory" in controllers.split(","):  # version 1: a tree per controller
            limits += _walk(root / "memory", group, "memory.limit_in_bytes")
    return limits


def _walk(tree: Path, group: str, file_name: str) -> list[int]:
    limits = []
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        try:
            text = tree.joinpath(*parts[:depth], file_name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # "max" means no limit
            limits.append(int(text))
    return limits
