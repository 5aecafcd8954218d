"""Checks whether the campaigns' file system can be mounted here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

from tests.drivers.daemon import ROOT

_COMMAND = (sys.executable, "-m", "tests.power.mounted")
_TIMEOUT_S = 20


def why_not_mountable() -> str | None:
    """Return the missing requirement; ``None`` if a mount works."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is not there, or not for this user"
    if not (shutil.which("fusermount3") or shutil.which("fusermount")):
        return "no fusermount3: install Debian's fuse3 or its like"
    with tempfile.TemporaryDirectory() as folder:
        try:
            tried = subprocess.run(
                [*_COMMAND, folder],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                cwd=ROOT,
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return f"a mount was not there within {_TIMEOUT_S} s"
    if tried.returncode != 0:
        return (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
    return None
