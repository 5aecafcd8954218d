"""The peers' requirements, installed by this program and only for its own use.

    <out>/peers/venv       packages from PyPI, pinned in requirements.txt; the running Python's
    <out>/peers/debian     programs of Debian packages, unpacked, not installed

The user's system and the project's own environment are not changed. Installed software is used,
and earlier installations are reused. A requirement that cannot be installed is tried once per
run; its one-line error is the reason for skipping the peer.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tests.bench.peers.debian import Program, find_installed, find_unpacked, unpack

_PINS = Path(__file__).with_name("requirements.txt")
_EVERYWHERE = ("numpy", "pyarrow")
"""Requirements of the writing processes themselves."""
_WITHIN_S = 600


class Missing(Exception):
    """Raised with the reason, in one line, why a peer cannot take part."""


class Installation:
    """Software in a folder that outlives the run, or on this machine."""

    def __init__(self, folder: Path, *, installs: bool, say: Callable[[str], None]) -> None:
        """``installs``: if false, only peers that the running Python provides take part."""
        self._folder = folder.resolve()
        self._installs = installs
        self._say = say
        self._failed: dict[str, str] = {}

    def python_with(self, packages: Sequence[str]) -> Path:
        """Return an interpreter that imports these packages.

        Args:
            packages: Requirements without a version, such as ``psycopg[binary]``.

        Raises:
            Missing: One of them cannot be installed.
        """
        if not self._installs or not packages:
            for name in packages:
                if find_spec(name.partition("[")[0]) is None:
                    raise Missing(f"{name} is not installed here")
            return Path(sys.executable)
        python = self._folder / "venv" / "bin" / "python"
        pins = _PINS.read_text()
        for name in packages:
            mark = self._folder / "venv" / f".installed-{name.partition('[')[0]}"
            if not (mark.is_file() and mark.read_text() == pins):
                self._once(name, partial(_install, python, name))
                mark.write_text(pins)
        return python

    def debian(self, package: str, program: str, pattern: str) -> Program:
        """Return a program: the one on ``PATH``, the newest installed version, or an unpacked one.

        Args:
            package: The Debian package that contains it.
            pattern: Its path from the root of the file system; may have wildcards.

        Raises:
            Missing: The program cannot be obtained.
        """
        if not self._installs:
            raise Missing(f"{package} is not looked for here")
        if found := find_installed(program, pattern):
            return found
        folder = self._folder / "debian" / package
        if not (found := find_unpacked(folder, pattern)):
            self._once(package, partial(unpack, package, folder))
            found = find_unpacked(folder, pattern)
        if not found:
            raise Missing(f"the Debian package {package} has no {pattern}")
        return found

    def _once(self, name: str, install: Callable[[], None]) -> None:
        if name in self._failed:
            raise Missing(self._failed[name])
        self._say(f"installing {name}")
        try:
            install()
        except (OSError, subprocess.SubprocessError) as exc:
            self._failed[name] = f"{name} could not be installed: {reason_of(exc)}"
            raise Missing(self._failed[name]) from exc


def _install(python: Path, requirement: str) -> None:
    """Install one requirement and its dependencies into the environment of an interpreter."""
    faster = find_spec("uv") is not None
    folder = python.parent.parent
    wanted = ["--constraint", str(_PINS), *_EVERYWHERE, requirement]
    if not python.exists():
        make = ["uv", "venv", "--python", sys.executable] if faster else ["venv"]
        _run([sys.executable, "-m", *make, str(folder)])
    if faster:
        _run([sys.executable, "-m", "uv", "pip", "install", "--python", str(python), *wanted])
    else:
        quiet = ["--quiet", "--disable-pip-version-check"]
        _run([str(python), "-m", "pip", "install", *quiet, *wanted])


def _run(command: list[str]) -> None:
    subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=_WITHIN_S,
    )


def reason_of(exc: Exception) -> str:
    """Format an error in one line: the output of a failed program, if any."""
    said = getattr(exc, "stderr", None) or str(exc) or type(exc).__name__
    return " ".join(str(said).split())[:300]
