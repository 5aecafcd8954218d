"""Every docstring names its subject: none is a fragment."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAGMENTS = {"For", "Its", "Of", "That", "Their", "Those", "Whose"}
"""First words of docstrings that are fragments without a subject."""


def _docstrings(path: Path) -> list[tuple[int, str]]:
    """Line and text of the docstrings of classes, functions and attributes, except the module's."""
    found = []
    module = ast.parse(path.read_text())
    for node in ast.walk(module):
        body = getattr(node, "body", ())
        for child in body if isinstance(body, list) else ():
            if child is module.body[0] or not isinstance(child, ast.Expr):
                continue
            if isinstance(child.value, ast.Constant) and isinstance(child.value.value, str):
                found.append((child.lineno, child.value.value.strip()))
    return found


@pytest.mark.parametrize("package", ["ingester", "persist", "wal"])
def test_no_docstring_is_a_fragment(package: str) -> None:
    fragments = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in _docstrings(path)
        if text.partition(" ")[0] in FRAGMENTS
    ]
    assert not fragments
