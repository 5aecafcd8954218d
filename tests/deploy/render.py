"""Renders the overlays of `deploy/kubernetes`: ``make manifests``.

The rendered files can be applied without kustomize, and the tests read them. The first line of
each has the digest of all sources.
"""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys
from pathlib import Path

MANIFESTS = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
RENDERED = MANIFESTS / "rendered"
HAPROXY = MANIFESTS.parent / "haproxy"
OVERLAYS = ("laptop", "s3", "production", "exposed", "diskless", "scaled-in")


def digest() -> str:
    """Return the digest of all sources of the rendered files."""
    found = hashlib.sha256()
    for folder in ("base", "components", "overlays"):
        for path in sorted((MANIFESTS / folder).rglob("*.yaml")):
            found.update(f"{path.relative_to(MANIFESTS)}\n".encode() + path.read_bytes())
    for path in sorted(HAPROXY.iterdir()):
        if path.suffix != ".md":
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def first_line() -> str:
    """Return the first line of files rendered from the current sources."""
    return f"# Made by `make manifests`, of base, components and overlays: sha256 {digest()}"


def main() -> None:
    """Render all overlays with the kustomize command in the first argument."""
    kustomize = shlex.split(sys.argv[1])
    RENDERED.mkdir(exist_ok=True)
    for overlay in OVERLAYS:
        command = [*kustomize, "build", str(MANIFESTS / "overlays" / overlay)]
        made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        (RENDERED / f"{overlay}.yaml").write_text(f"{first_line()}\n{made}")


if __name__ == "__main__":
    main()
