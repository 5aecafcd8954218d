"""``python -m tests.readme.rewrite``: run the commands of pages and update their outputs."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from .tour import Shell, alike, steps

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / name
        for name in ("tour.md", "exactly_once.md", "sources.md", "transformers.md", "followers.md")
    ),
)


def rewritten(page: str) -> str:
    """The page with outputs updated unless :func:`alike` (with ``--all``: all of them)."""
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(Path(folder))
        try:
            at = 0
            for step in steps(page):
                printed = shell.run(step)
                if step.file is not None:
                    continue
                command = f"$ {step.text}\n"
                at = page.index(command + step.expected, at) + len(command)
                if "--all" in sys.argv or alike(printed) != alike(step.expected):
                    # Remove bash's message about a killed job, which the command did not print.
                    shown = re.sub(r"^.* line \d+: +\d+ Killed.*\n| +$", "", printed, flags=re.M)
                    rest = page[at + len(step.expected) :]
                    gap = "" if rest.startswith("```") else "\n"
                    shown = shown.strip("\n") + "\n" + gap if shown.strip() else ""
                    page = page[:at] + shown + rest
                    print(f"$ {step.text}\n{shown}", end="")
        finally:
            shell.close()
    return page


def main() -> None:
    """Update all pages that have commands."""
    for path in PAGES:
        path.write_text(rewritten(path.read_text()))


if __name__ == "__main__":
    main()
