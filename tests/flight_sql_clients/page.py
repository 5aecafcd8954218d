"""The fenced blocks of ``docs/sql_clients.md``, with the address of a test."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sql_clients.md"


def blocks(language: str, address: str) -> list[str]:
    """Return the blocks of a language; ``address`` is ``127.0.0.1:8082`` on the page."""
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [text.replace("127.0.0.1:8082", address) for text in found]
