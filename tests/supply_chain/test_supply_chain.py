"""Locked packages are audited and listed, and the container's base is pinned by digest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ingester import __version__
from tests.house.test_packaging import RUNTIME_LOCK, pins
from tests.supply_chain.advisories import (
    LIST,
    affects,
    audit,
    locked_names,
    renewed,
    serving,
    shipped,
)

ROOT = Path(__file__).resolve().parents[2]
HASH = "--hash=sha256:" + "0" * 64
DIGEST = "python:3.12-slim@sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(("version", "code"), [("14.0.0", 1), ("14.0.1", 0)])
def test_a_lock_with_a_known_vulnerability_fails_the_audit(
    tmp_path: Path, version: str, code: int
) -> None:
    lock = tmp_path / "lock"
    lock.write_text(f"pyarrow=={version} {HASH}\nidna==3.20 {HASH}\n")
    done = audit(lock, shipped()[1])
    assert done.returncode == code, done.stderr
    assert ("CVE-2023-47248" in done.stdout) is (code == 1)


def test_what_runs_in_the_container_has_no_known_vulnerability() -> None:
    _, advisories = shipped()
    assert len(advisories) >= 30
    locked = pins(RUNTIME_LOCK)
    named = {each["affected"][0]["package"]["name"] for each in advisories}
    assert named & locked.keys() >= {"pyarrow", "starlette", "aiohttp", "urllib3"}
    hit = [(n, v, a["id"]) for n, v in locked.items() for a in advisories if affects(a, n, v)]
    assert hit == []


def test_a_range_is_read_as_osv_says() -> None:
    def within(version: str, *events: tuple[str, str]) -> bool:
        ranges = [{"type": "ECOSYSTEM", "events": [{kind: at} for kind, at in events]}]
        package = {"ecosystem": "PyPI", "name": "A_b"}
        return affects({"affected": [{"package": package, "ranges": ranges}]}, "a-b", version)

    twice = [("introduced", "0"), ("fixed", "1.2"), ("introduced", "2.0"), ("fixed", "2.1")]
    found = {v: within(v, *twice) for v in ("1.1", "1.2", "1.9", "2.0rc1", "2.0", "2.1", "3")}
    assert [version for version, inside in found.items() if inside] == ["1.1", "2.0"]
    assert within("1.5", ("introduced", "1.0"), ("last_affected", "1.5"))
    assert not within("1.5.1", ("introduced", "1.0"), ("last_affected", "1.5"))


def test_the_list_is_renewed_from_a_server_that_answers_as_osv() -> None:
    _, advisories = shipped()
    mine = [each for each in advisories if each["affected"][0]["package"]["name"] == "urllib3"]
    withdrawn = {**mine[0], "id": "CVE-0", "withdrawn": "2026-01-01T00:00:00Z"}
    with serving([*advisories, withdrawn]) as url:
        assert renewed(["urllib3", "trio"], url) == mine
    assert LIST.is_file() and {"urllib3", "pip-audit", "trio"} <= set(locked_names())


def test_the_sbom_names_everything_that_the_container_has(tmp_path: Path) -> None:
    made = tmp_path / "sbom.json"
    recipe = re.search(r"cyclonedx-py (.*?) -o", (ROOT / "Makefile").read_text(), re.S)
    assert recipe is not None
    options = recipe[1].replace("\\\n", " ").split()
    # Two entries of the lock, because an audit of all takes 10 s.
    lock = tmp_path / "lock"
    lock.write_text(
        "".join(re.findall(r"^(?:h11|idna)==[^#]*?(?=^\S)", RUNTIME_LOCK.read_text(), re.M))
    )
    assert options[1] == "deploy/requirements.lock"
    options[1] = str(lock)
    command = [sys.executable, "-m", "cyclonedx_py", *options, "-o", str(made)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    bom = json.loads(made.read_text())
    assert bom["bomFormat"] == "CycloneDX"
    assert {c["name"]: c["version"] for c in bom["components"]} == pins(lock)
    assert pins(lock).keys() == {"h11", "idna"}
    assert all(each["externalReferences"][0]["hashes"] for each in bom["components"])


def test_the_container_is_built_on_a_digest_alone_and_runs_as_nobody_in_particular() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    assert re.findall(r"^FROM (\S+)", text, re.M) == ["${PYTHON_IMAGE}"] * 2
    assert re.search(r"^ARG PYTHON_IMAGE$", text, re.M)
    (check,) = re.findall(r"^RUN (case .*)$", text, re.M)
    for image, code in ((DIGEST, 0), ("python:3.12-slim", 1), (DIGEST[:-1], 1), ("", 1)):
        done = subprocess.run(
            ["sh", "-c", check], env={"PYTHON_IMAGE": image}, capture_output=True, text=True
        )
        assert done.returncode == code, image
        assert ("has no digest" in done.stderr) is (code == 1)
    assert re.findall(r"^USER (.*)$", text, re.M) == ["10001:10001"]
    made = subprocess.run(
        ["make", "image", "PYTHON_IMAGE=python:3.12"], cwd=ROOT, capture_output=True, text=True
    )
    assert made.returncode == 2 and "has no digest" in made.stderr
    digest = "sha256:" + 64 * "0"
    asked = ["make", "-n", "image", f"PYTHON_IMAGE=python:3.12@{digest}"]
    dry = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"-t ingester:{__version__} ." in dry
    pods = [*(ROOT / "deploy" / "kubernetes").rglob("*.yaml")]
    # Components patch a pod that is among these; tests/deploy checks the rendered manifests.
    written = [pod.read_text() for pod in pods if not {"rendered", "components"} & set(pod.parts)]
    runs = [text for text in written if "\n          image:" in text]
    assert len(runs) == 4
    for pod in runs:
        for needed in ("runAsNonRoot: true", "readOnlyRootFilesystem: true", "drop: [ALL]"):
            assert needed in pod
        assert f"image: ingester:{__version__}\n" in pod
        assert "allowPrivilegeEscalation: false" in pod
