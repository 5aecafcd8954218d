"""The docstring of each package's ``__init__`` names every module of the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = sorted(
    page.parent.relative_to(ROOT)
    for package in ("ingester", "persist", "wal")
    for page in (ROOT / package).rglob("__init__.py")
)


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_the_page_of_a_room_names_all_its_modules(room: Path) -> None:
    page = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or ""
    named = set(re.findall(r"`+(?:~?[\w.]+\.)?(\w+)`+", page))
    modules = {
        child.stem
        for child in (ROOT / room).iterdir()
        if (child.suffix == ".py" and child.name != "__init__.py")
        or (child.is_dir() and (child / "__init__.py").exists())
    }
    assert modules - named == set(), "not on the front page"
