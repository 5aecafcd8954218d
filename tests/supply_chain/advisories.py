"""Audits the locked packages against the shipped advisories: ``make audit``, without a network.

    deploy/advisories.json ─▶ a server on the loopback that answers as OSV's does ─▶ pip-audit
    ``make advisories``    ─▶ OSV itself, if it is reachable ─▶ deploy/advisories.json

The list has documents of OSV's schema (https://ossf.github.io/osv-schema/), with the fields that
pip-audit and people read: id, aliases, summary and affected versions. The list may be outdated,
so :func:`main` prints its date. For today's advisories, run ``pip-audit -s osv``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "deploy" / "advisories.json"
LOCKS = (ROOT / "requirements.lock", ROOT / "deploy" / "requirements.lock")
OSV = "https://api.osv.dev/v1/query"
Advisory = dict[str, Any]


def shipped(path: Path = LIST) -> tuple[str, list[Advisory]]:
    """Return the date of the list and its advisories."""
    read = json.loads(path.read_text())
    return read["as_of"], read["advisories"]


def affects(advisory: Advisory, name: str, version: str | None) -> bool:
    """Return whether an advisory affects this version of a package, or any version if None."""
    for affected in advisory.get("affected", ()):
        package = affected["package"]
        if package["ecosystem"] != "PyPI" or canonicalize_name(package["name"]) != name:
            continue
        if version is None or version in affected.get("versions", ()):
            return True
        if any(_within(each["events"], Version(version)) for each in affected.get("ranges", ())):
            return True
    return False


def _within(events: Sequence[Mapping[str, str]], version: Version) -> bool:
    """Return whether a version is in a range; by OSV's rule the last matching event decides."""
    inside = False
    for event in events:
        for kind, text in event.items():
            try:
                at = Version(text)
            except InvalidVersion:  # a range of commits
                return False
            if kind == "introduced":
                inside = inside or version >= at
            elif kind == "fixed":
                inside = inside and version < at
            elif kind == "last_affected":
                inside = inside and version <= at
    return inside


@contextmanager
def serving(advisories: Sequence[Advisory]) -> Iterator[str]:
    """Serve advisories on the loopback as OSV does, and yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            name = canonicalize_name(asked["package"]["name"])
            found = [each for each in advisories if affects(each, name, asked.get("version"))]
            body = json.dumps({"vulns": found} if found else {}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def audit(lock: Path, advisories: Sequence[Advisory]) -> subprocess.CompletedProcess[str]:
    """Run pip-audit over a lock with these advisories; its exit code is 1 if one applies."""
    with serving(advisories) as url:
        command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes"]
        command += ["--progress-spinner", "off", "--cache-dir", str(ROOT / ".venv" / "audit")]
        command += ["--vulnerability-service", "osv", "--osv-url", url, "-r", str(lock)]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def renewed(names: Sequence[str], url: str = OSV) -> list[Advisory]:
    """Return OSV's advisories for these packages, except withdrawn ones."""
    found: dict[str, Advisory] = {}
    for name in names:
        asked: dict[str, Any] = {"package": {"name": name, "ecosystem": "PyPI"}}
        while True:
            request = urllib.request.Request(url, json.dumps(asked).encode())
            with urllib.request.urlopen(request, timeout=30) as answer:
                said = json.load(answer)
            for each in said.get("vulns", ()):
                if not each.get("withdrawn"):
                    found[each["id"]] = _kept(each, name)
            if not said.get("next_page_token"):
                break
            asked["page_token"] = said["next_page_token"]
    return [found[key] for key in sorted(found)]


def _kept(advisory: Advisory, name: str) -> Advisory:
    affected = [
        {
            "package": {"ecosystem": "PyPI", "name": name},
            "ranges": [r for r in each.get("ranges", ()) if r["type"] == "ECOSYSTEM"],
            "versions": each.get("versions", []),
        }
        for each in advisory["affected"]
        if each["package"]["ecosystem"] == "PyPI"
        and canonicalize_name(each["package"]["name"]) == name
    ]
    for each in affected:
        if each["ranges"]:
            del each["versions"]  # the ranges are shorter
    summary = advisory.get("summary") or advisory.get("details", "")[:200]
    return {
        "id": advisory["id"],
        "aliases": advisory.get("aliases", []),
        "summary": " ".join(summary.split()),
        "affected": affected,
    }


def locked_names() -> list[str]:
    """Return the packages of all locks."""
    found = {
        canonicalize_name(name)
        for lock in LOCKS
        for name in re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==", lock.read_text(), re.MULTILINE)
    }
    return sorted(found)


def write(advisories: Sequence[Advisory], path: Path = LIST) -> None:
    """Write the list, one advisory per line."""
    lines = ",\n".join("  " + json.dumps(each) for each in advisories)
    day = datetime.now(UTC).date().isoformat()
    path.write_text(f'{{"as_of": "{day}", "advisories": [\n{lines}\n]}}\n')


def main(arguments: Sequence[str]) -> int:
    """Audit every lock, or with ``renew`` download the list from OSV."""
    if list(arguments) == ["renew"]:
        write(renewed(locked_names()))
        return 0
    as_of, advisories = shipped()
    failed = False
    for lock in LOCKS:
        done = audit(lock, advisories)
        print(f"{lock.relative_to(ROOT)}: {(done.stderr.strip() or done.stdout.strip())}")
        if done.returncode:
            print(done.stdout)
        failed = failed or done.returncode != 0
    print(f"the list has {len(advisories)} advisories, of {as_of}; `make advisories` renews it")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
