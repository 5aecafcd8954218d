"""A Markdown tour as executable steps.

A ``console`` fence holds commands (``$ …``) with their output. A line such as `` `name.py`: ``
directly above a fence of any other language makes the fence a file. The commands run in one bash
in an empty folder, in the order of the page. Ports and the folder are the test's own;
:func:`alike` removes everything else that differs between runs.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.drivers.ports import free_port

FLIGHT_PORT, HTTP_PORT = "8082", "8080"
FOLDER = "/home/me/tour"
SILENT_FOR_S = 120.0
OF_ONE_DAEMON = {
    "INGESTER_FLIGHT__LISTEN": f"127.0.0.1:{FLIGHT_PORT}",
    "INGESTER_HTTP__LISTEN": f"127.0.0.1:{HTTP_PORT}",
    "INGESTER_ENDPOINT": f"grpc://127.0.0.1:{FLIGHT_PORT}",
    "INGESTER_ID": "here",
}

_FENCE = re.compile(
    r"(?:^`(?P<file>[^`\n]+)`:\n\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Step:
    """A file to write (``file``), or a command with its expected output."""

    text: str
    file: str | None = None
    expected: str = ""


def steps(page: str) -> list[Step]:
    """All steps of a page, in order."""
    found: list[Step] = []
    for fence in _FENCE.finditer(page):
        if fence["language"] == "console":
            for part in re.split(r"^\$ ", fence["body"], flags=re.M)[1:]:
                command, _, output = part.partition("\n")
                found.append(Step(command, expected=output))
        elif fence["file"]:
            found.append(Step(fence["body"], file=fence["file"]))
    return found


_VOLATILE = (
    (r'"incarnation": ?"[0-9a-f]+"', '"incarnation": "ID"'),
    (r'"pid": ?\d+', '"pid": N'),
    (r"\b[0-9a-f]{32}\b", "UID"),
    (r"last answer \S+Z", "last answer T"),
    (r"\b[\d.,]+ rows/s", "N rows/s"),
    (r"\b[\d.,]+ (ms|s|per second)\b", r"N s"),
    (r"\b[\d.,]+ (B|KiB|MiB|GiB)(?!\w)", "N KiB"),
    # Partitions flushed together may share a commit, and so a version.
    (r"^(sensors +readings +)\d+", r"\1V"),
    (r"\S+ line \d+: +\d+ Killed.*", ""),
    (r" +$", ""),
    (r" +", " "),
)


def alike(output: str) -> str:
    """``output`` without ids, times, sizes and the widths of columns."""
    for pattern, replacement in _VOLATILE:
        output = re.sub(pattern, replacement, output, flags=re.M)
    return "\n".join(line for line in output.splitlines() if line.strip())


_END = ":end-of-step:"


class Shell:
    """A bash in one folder, with ``ingester`` and ``python`` of this environment on its path.

    Args:
        ports: The page's port numbers, each mapped to a free port or to the given one.
        places: Folders named on a page, with the folders used instead.
        environment: Further variables, with ports as the page names them.
    """

    def __init__(
        self,
        folder: Path,
        ports: tuple[str, ...] | Mapping[str, str] = (FLIGHT_PORT, HTTP_PORT),
        places: Mapping[str, Path] | None = None,
        environment: Mapping[str, str] = OF_ONE_DAEMON,
    ) -> None:
        self._folder = folder
        named = ports if isinstance(ports, Mapping) else {}
        self._ports = {shown: named.get(shown) or str(free_port()) for shown in ports}
        self._places = dict(places or {})
        self.status = 0
        """The exit code of the last command."""
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("INGESTER_")},
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                **{key: self._with(self._ports, text) for key, text in environment.items()},
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, step: Step) -> str:
        """The output of a command, with ports and folders as on the page; empty for a file."""
        text = self._with(self._ports, step.text)
        for shown, place in self._places.items():
            text = text.replace(shown, str(place))
        if step.file is not None:
            (self._folder / step.file).write_text(text)
            return ""
        # A daemon in the background prints its ready line.
        awaited = '"ready"' if text.rstrip().endswith("&") else None
        printed = "".join(self._lines(text, awaited))
        printed = self._with({port: shown for shown, port in self._ports.items()}, printed)
        for shown, place in self._places.items():
            printed = printed.replace(str(place), shown)
        return printed.replace(str(self._folder), FOLDER)

    def run_text(self, text: str) -> None:
        """Let bash read lines literally, for example function definitions."""
        for _ in self._lines(text, None):
            pass

    def close(self) -> None:
        """Kill bash and everything that it started."""
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()

    def _lines(self, command: str, awaited: str | None) -> Iterator[str]:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{command}\necho {_END} $?\n")
        self._bash.stdin.flush()
        ended = False
        # A command that hangs must end the tour with the output so far.
        watch = threading.Timer(SILENT_FOR_S, os.killpg, (self._bash.pid, signal.SIGKILL))
        watch.start()
        try:
            while not ended or awaited is not None:
                line = self._bash.stdout.readline()
                if not line:
                    raise AssertionError(f"bash has ended within: {command}")
                if line.startswith(_END):
                    ended = True
                    self.status = int(line.removeprefix(_END))
                    continue
                if awaited is not None and awaited in line:
                    awaited = None
                yield line
        finally:
            watch.cancel()

    @staticmethod
    def _with(ports: dict[str, str], text: str) -> str:
        for before, after in ports.items():
            text = re.sub(rf"(127\.0\.0\.1|localhost):{before}\b", rf"\1:{after}", text)
        return text
