"""Programs of Debian packages: found where installed, or unpacked into a folder without root.

    <folder>/lists, <folder>/cache    the package client's state, with its own locks
    <folder>/root                     the packages as they would lie under /

Only packages that are missing on this machine are fetched. None is installed: no package script
runs, no service starts, and nothing outside the folder changes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

_WITHIN_S = 300
_ROOT = "root"


@dataclass(frozen=True, slots=True)
class Program:
    """An executable, and the environment in which it finds its libraries."""

    path: Path
    environment: dict[str, str] = field(default_factory=dict)


def find_installed(program: str, pattern: str) -> Program | None:
    """Return the newest file that fits a pattern under ``/``, or the program on ``PATH``."""
    if path := _newest(Path("/"), pattern):
        return Program(path)
    on_path = shutil.which(program)
    return Program(Path(on_path).resolve()) if on_path else None


def find_unpacked(folder: Path, pattern: str) -> Program | None:
    """Return the newest file in a folder of :func:`unpack`."""
    root = folder / _ROOT
    if not (path := _newest(root, pattern)):
        return None
    libraries = [
        str(each) for each in (*root.glob("usr/lib/*-linux-gnu*"), *root.glob("lib/*-linux-gnu*"))
    ]
    return Program(path, {"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {})


def unpack(package: str, folder: Path) -> None:
    """Fetch a package and its missing dependencies, and unpack them.

    Raises:
        OSError: This machine has no such package client.
        subprocess.SubprocessError: The client does not find the package, or fails.
    """
    rmtree(folder, ignore_errors=True)
    for part in ("lists/partial", "cache/archives/partial", "unpacked"):
        (folder / part).mkdir(parents=True)
    client = [
        "apt-get",
        "--quiet=2",
        f"--option=Dir::State::Lists={folder}/lists",
        f"--option=Dir::Cache={folder}/cache",
        "--option=Debug::NoLocking=1",
    ]
    if os.geteuid() == 0:
        # Otherwise apt changes to a user that may not write here.
        client.append("--option=APT::Sandbox::User=root")
    _run([*client, "update"])
    _run([*client, "--yes", "--no-install-recommends", "--download-only", "install", package])
    for archive in sorted((folder / "cache/archives").glob("*.deb")):
        _run(["dpkg-deb", "--extract", str(archive), str(folder / "unpacked")])
    rmtree(folder / "lists")
    rmtree(folder / "cache")
    (folder / "unpacked").rename(folder / _ROOT)  # Only a complete unpacking has this name.


def _run(command: list[str]) -> None:
    subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=_WITHIN_S,
    )


def _newest(root: Path, pattern: str) -> Path | None:
    def version(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", str(path.relative_to(root)))]

    return max((path for path in root.glob(pattern) if path.is_file()), key=version, default=None)
