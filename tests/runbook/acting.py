"""Parses the runbook's procedures and entries into steps, and compares their output with the page.

The commands of an entry stand below **Look at.** and **Do.**; a paragraph that begins with a
cause in ``*italics*`` has the commands for that cause.

A ``…`` within a line matches any text, and a line with only ``…`` matches any number of lines.
If the page shows no output, the command must print nothing and exit with 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.readme.tour import Shell, Step, alike, steps

RUNBOOK = Path(__file__).resolve().parents[2] / "deploy" / "RUNBOOK.md"
PORTS = ("8082", "8080", "8182", "8180", "8282", "8280")
PLACES = ("/var/lib/ingester", "/srv", "/mnt")
ELLIPSIS = "…"


def procedures(page: str) -> Iterator[tuple[str, list[Step]]]:
    """Yield the title and steps of each procedure in page order; the first one is the setup."""
    section = re.split(r"^## ", page.partition("\n## Procedures\n")[2], flags=re.M)[0]
    first, *others = re.split(r"^### ", section, flags=re.M)
    yield "Procedures", steps(first)
    for part in others:
        title, _, text = part.partition("\n")
        yield title, steps(text)


class Act(NamedTuple):
    """A command of an entry, its heading, and the cause that it is for, if it is for one only."""

    part: str
    cause: str | None
    step: Step


def named(title: str) -> str:
    """Return the anchor that links use for a title."""
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def entry(page: str, name: str) -> str:
    """Return the text of a section, given its title or anchor."""
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        title, _, text = section.partition("\n")
        if name in (title, named(title)):
            return re.split(r"^### ", text, flags=re.M)[0]
    raise KeyError(name)


def acts(page: str, name: str) -> list[Act]:
    """Return the commands of an entry in order."""
    found: list[Act] = []
    for part in re.split(r"^(?=\*\*[A-Z])", entry(page, name), flags=re.M):
        heading = re.match(r"\*\*(.+?)\.\*\*", part)
        title = heading[1] if heading else ""
        for piece in re.split(r"^(?=\*[^*\n]+\*)", part, flags=re.M):
            begins = re.match(r"(?:\*\*.+?\.\*\* )?\*([^*\n]+)\*", piece)
            cause = begins[1] if begins else None
            found += [Act(title, cause, step) for step in steps(piece)]
    return found


def causes(page: str, name: str) -> list[str | None]:
    """Return the causes with commands below **Do.**, each once; None stands for all causes."""
    return list(dict.fromkeys(each.cause for each in acts(page, name) if each.part == "Do"))


def fits(expected: str, printed: str) -> bool:
    """Return whether the printed output matches the page."""
    pattern = ""
    for line in alike(expected).splitlines():
        if line == ELLIPSIS:
            pattern += r"(?:.*\n)*"
        else:
            pattern += ".*".join(re.escape(piece) for piece in line.split(ELLIPSIS)) + r"\n"
    text = "".join(f"{line}\n" for line in alike(printed).splitlines())
    return re.fullmatch(pattern, text) is not None


def stage(folder: Path) -> Shell:
    """Return a shell in which the folders of the page are below ``folder``."""
    places = {place: folder / place.lstrip("/").replace("/", "-") for place in PLACES}
    for place in places.values():
        place.mkdir()
    (folder / "here").mkdir()
    return Shell(folder / "here", PORTS, places, {"INGESTER_PERSIST__MAX_AGE": "1h"})
