"""Installed versions are the locked ones, and the wheel has every file of the packages."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("wal", "persist", "ingester")
LOCK = ROOT / "requirements.lock"
RUNTIME_LOCK = ROOT / "deploy" / "requirements.lock"


def pins(lock: Path) -> dict[str, str]:
    """The versions in a lock file, by package name."""
    found = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s;\\]+)", lock.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def requirements() -> Iterator[Requirement]:
    """Every requirement of the project, including those of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for listed in [project["dependencies"], *project["optional-dependencies"].values()]:
        yield from (Requirement(text) for text in listed if not text.startswith("ingester["))


def test_no_advice_installs_a_package_of_this_name_from_an_index() -> None:
    """The package is not published, so another's of the same name would be installed."""
    files = [ROOT / name for name in ("README.md", "docs", "deploy", *PACKAGES)]
    texts = [each for file in files for each in ([file] if file.is_file() else file.rglob("*"))]
    named = re.compile(r"pip install [^\n#]*(?<![-./\w])ingester\b(?!/)")
    suffixes = {".md", ".py", ".yaml", ".service", ".toml"}
    found = [
        str(text.relative_to(ROOT))
        for text in texts
        if text.suffix in suffixes and named.search(text.read_text())
    ]
    assert found == []


def test_every_requirement_is_locked_at_a_version_it_allows() -> None:
    locked = pins(LOCK)
    for requirement in requirements():
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not locked: make lock"
        assert requirement.specifier.contains(version), f"{requirement} against {version}"


def test_the_container_runs_what_the_tests_ran() -> None:
    locked = pins(LOCK)
    runtime = pins(RUNTIME_LOCK)
    assert runtime.keys() >= {"pyarrow", "trio", "msgspec"}
    assert {name for name in runtime if locked.get(name) != runtime[name]} == set()


@pytest.mark.parametrize("lock", [LOCK, RUNTIME_LOCK], ids=["all", "runtime"])
def test_a_lock_has_a_hash_for_everything_and_names_no_host(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"^-", text, re.MULTILINE)
    entries = re.split(r"^(?=[\w.-]+(?:\[[\w,]+\])?==)", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(pins(lock))
    assert [entry.split("==")[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_wheel_has_every_file_of_the_three_packages(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("ingester-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "ingester = ingester.cli:main" in archive.read(metadata).decode()
    here = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == here
    assert {f"{package}/py.typed" for package in PACKAGES} <= packed
