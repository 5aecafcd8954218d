"""Names in the docs match the code: modules, classes, imports, settings."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from ingester.config.sources import known_keys

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = ROOT / "docs" / "architecture"
ORDER = re.findall(
    r"\(architecture/(\w+\.md)\)",
    (ROOT / "docs" / "README.md").read_text().split("## To change")[1],
)
PAGES = [
    *sorted(CHAPTERS.glob("*.md")),
    ROOT / "docs" / "glossary.md",
    ROOT / "docs" / "formats.md",
]
EVERY = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "deploy" / "RUNBOOK.md"]
# A package or module relative to the root or to `ingester/`: `write/stream`, `wal/format.py`.
PATH = re.compile(r"[a-z_]+(?:/[a-z_0-9]+)+(?:\.(?:py|html))?/?")
LINKED_ROW = re.compile(r"^\|.*\]\(((?:\.\./)+[a-z_/0-9]+\.py)\).*\|$", re.M)
NAME = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]+)*(?:\(\))?")


def spans(text: str) -> list[str]:
    """The code spans of a page, except inside fences."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))


def is_there(path: str) -> bool:
    found = [ROOT / path, ROOT / "ingester" / path]
    return any(at.exists() or at.with_suffix(".py").exists() for at in found)


def names_of(module: Path) -> set[str]:
    """The definitions of a module, with methods and attributes as ``Class.name``."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(f"{node.name}.{inner.name}")
                elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                    found.add(f"{node.name}.{inner.target.id}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    paths = [span for span in spans(page.read_text()) if PATH.fullmatch(span)]
    assert [path for path in paths if not is_there(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_beside_a_linked_module_is_defined_in_it(page: Path) -> None:
    for row in LINKED_ROW.finditer(page.read_text()):
        cells = row[0].rsplit("](", 1)[1].partition(")")[2]
        known = names_of((page.parent / row[1]).resolve())
        named = [span.removesuffix("()") for span in spans(cells) if NAME.fullmatch(span)]
        assert [name for name in named if name not in known] == [], row[1]


def test_chapters_lead_to_the_next_and_back() -> None:
    assert sorted(ORDER) == sorted(path.name for path in CHAPTERS.glob("*.md"))
    for at, name in enumerate(ORDER):
        last = (CHAPTERS / name).read_text().rstrip().splitlines()[-1]
        around = ([ORDER[at - 1]] if at else []) + ORDER[at + 1 : at + 2]
        assert re.findall(r"\((\w+\.md)\)", last) == around, name


def test_the_glossary_has_every_term_once() -> None:
    rows = re.findall(r"^\| ([a-z][^|]*) \|", (ROOT / "docs" / "glossary.md").read_text(), re.M)
    terms = [term for term in rows if term != "term"]
    assert len(terms) > 50
    assert terms == sorted(set(terms))


@pytest.mark.parametrize("page", EVERY, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_import_what_is_there(page: Path) -> None:
    for example in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S):
        for node in ast.walk(ast.parse(example)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ingester"):
                module = importlib.import_module(str(node.module))
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pytest.mark.parametrize("page", EVERY, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_setting_that_a_page_names_is_one(page: Path) -> None:
    keys = list(known_keys())
    sections = {key.rpartition(".")[0] for key in keys if "." in key}
    named = {
        key
        for span in spans(page.read_text())
        if re.fullmatch(r"[a-z]+(\.[a-z_]+)+( = .*)?", span)
        and (key := span.partition(" ")[0]).rpartition(".")[0] in sections
    }
    assert named - set(keys) == set()
