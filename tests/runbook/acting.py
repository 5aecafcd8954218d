"""The procedures of the runbook as steps, and what a page may leave out of what they print.

A line's ``…`` stands for anything, and a line that is ``…`` alone for any number of lines. A
command without output in the page has to print nothing and to end with 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.readme.tour import Shell, Step, alike, steps

RUNBOOK = Path(__file__).resolve().parents[2] / "deploy" / "RUNBOOK.md"
PORTS = ("8082", "8080", "8182", "8180", "8282", "8280")
PLACES = ("/var/lib/ingester", "/srv", "/mnt")
ELLIPSIS = "…"


def procedures(page: str) -> Iterator[tuple[str, list[Step]]]:
    """The title and the steps of each procedure, in the order of the page; first what sets up."""
    section = re.split(r"^## ", page.partition("\n## Procedures\n")[2], flags=re.M)[0]
    first, *others = re.split(r"^### ", section, flags=re.M)
    yield "Procedures", steps(first)
    for part in others:
        title, _, text = part.partition("\n")
        yield title, steps(text)


def fits(expected: str, printed: str) -> bool:
    """Whether a command has printed what the page says."""
    pattern = ""
    for line in alike(expected).splitlines():
        if line == ELLIPSIS:
            pattern += r"(?:.*\n)*"
        else:
            pattern += ".*".join(re.escape(piece) for piece in line.split(ELLIPSIS)) + r"\n"
    text = "".join(f"{line}\n" for line in alike(printed).splitlines())
    return re.fullmatch(pattern, text) is not None


def stage(folder: Path) -> Shell:
    """A shell where the folders of the page are below ``folder``."""
    places = {place: folder / place.lstrip("/").replace("/", "-") for place in PLACES}
    for place in places.values():
        place.mkdir()
    (folder / "here").mkdir()
    return Shell(folder / "here", PORTS, places, {"INGESTER_PERSIST__MAX_AGE": "1h"})
