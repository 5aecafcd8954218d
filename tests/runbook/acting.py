"""The runbook's procedures and entries as steps, and what a page may leave out of what they print.

An entry has its commands below **Look at.** and **Do.**; a paragraph that begins with a cause in
``*italics*`` has those for this cause.

A line's ``…`` stands for anything, and a line that is ``…`` alone for any number of lines. A
command without output in the page has to print nothing and to end with 0.
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
    """The title and the steps of each procedure, in the order of the page; first what sets up."""
    section = re.split(r"^## ", page.partition("\n## Procedures\n")[2], flags=re.M)[0]
    first, *others = re.split(r"^### ", section, flags=re.M)
    yield "Procedures", steps(first)
    for part in others:
        title, _, text = part.partition("\n")
        yield title, steps(text)


class Act(NamedTuple):
    """A command of an entry: below which heading, and for which cause, if it is for one alone."""

    part: str
    cause: str | None
    step: Step


def named(title: str) -> str:
    """The anchor of a title, by which links name it."""
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def entry(page: str, name: str) -> str:
    """The text of an entry, or of another section, by its title or by the anchor of that."""
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        title, _, text = section.partition("\n")
        if name in (title, named(title)):
            return re.split(r"^### ", text, flags=re.M)[0]
    raise KeyError(name)


def acts(page: str, name: str) -> list[Act]:
    """The commands of an entry, in its order."""
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
    """Those for which an entry has commands that help, each once; None are those for all."""
    return list(dict.fromkeys(each.cause for each in acts(page, name) if each.part == "Do"))


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
