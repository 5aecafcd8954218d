"""``ingester tokens``: create, list and revoke; the file stays complete and private in any case."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.conftest import Run, check_refused


def test_a_token_is_printed_once_and_kept_by_its_hash(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    before = os.umask(0)
    try:
        made = run("tokens", "add", "etl", "--grant", "shop:read,write", "--file", file)
    finally:
        os.umask(before)
    token = made.stdout.decode().strip()
    assert token.startswith("igt_")
    assert token.split("_", 2)[2] not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    (listed,) = json.loads(run("tokens", "list", "--json", INGESTER_AUTH__TOKENS=str(file)).stdout)
    assert (listed["name"], listed["grants"], listed["valid"]) == ("etl", ["shop:read,write"], True)
    assert "sha256" not in listed
    assert run("tokens", "revoke", listed["id"], "--file", file).returncode == 0
    assert "was revoked at" in run("tokens", "list", "--file", file).stdout.decode()


def test_concurrently_added_tokens_are_all_kept(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    names = [f"n{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        made = threads.map(
            lambda name: run("tokens", "add", name, "--grant", "a:read", "--file", file), names
        )
        assert all(each.returncode == 0 for each in made)
    listed = json.loads(run("tokens", "list", "--json", "--file", file).stdout)
    assert sorted(each["name"] for each in listed) == names


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--grant", "sh*:read"], 2, "'*' stands for all namespaces"),
        (["--grant", "shop:reed"], 2, "'reed' is not a right"),
        (["--grant", "shop"], 2, "is not NAMESPACE:RIGHTS"),
        (["--grant", "shop:read", "--expires", "soon"], 2, "--expires"),
    ],
)
def test_an_invalid_grant_creates_no_token(
    run: Run, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    file = tmp_path / "tokens.json"
    check_refused(run("tokens", "add", "x", *arguments, "--file", file), code, said)
    assert not file.exists()


def test_an_unsafe_or_invalid_token_file_is_refused_and_unchanged(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    run("tokens", "add", "x", "--grant", "a:read", "--file", file)
    file.chmod(0o644)
    check_refused(run("tokens", "list", "--file", file), 1, "chmod 0640")
    file.chmod(0o600)
    file.write_text('{"version": 1, "tokens": [{"id": "nothex"}]}')
    add = ("tokens", "add", "y", "--grant", "a:read", "--file", file)
    check_refused(run(*add), 1, "not a file of tokens")
    assert "nothex" in file.read_text()
