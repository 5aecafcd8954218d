"""The fixture of a release: its data directory and store, its answers about them, and its client.

    fixtures/0.1.0/data.tar.xz      killed, with a log that is in no file; includes the store
                   answers.json.xz  the answers of that release when it is started on them
                   client.zip       its client, as Python imports it

A fixture never changes after its release: every later version must open it.
"""

from __future__ import annotations

import json
import lzma
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.drivers.wire import Table

FOLDER = Path(__file__).with_name("fixtures")


@dataclass(frozen=True)
class Fixture:
    release: str

    @property
    def folder(self) -> Path:
        return FOLDER / self.release

    @property
    def archive(self) -> Path:
        """The data directory with the store."""
        return self.folder / "data.tar.xz"

    @property
    def client(self) -> Path:
        """The client of that release."""
        return self.folder / "client.zip"

    def answers(self) -> dict[str, Any]:
        """The answers of the release itself."""
        answers: dict[str, Any] = json.loads(lzma.decompress(self._answers.read_bytes()))
        return answers

    def keep_answers(self, answers: dict[str, Any]) -> None:
        """Write the answers to the fixture."""
        text = json.dumps(answers, separators=(",", ":")).encode()
        self._answers.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))

    @property
    def _answers(self) -> Path:
        return self.folder / "answers.json.xz"

    def pack(self, data: Path) -> None:
        """Pack a data directory, without the user that made it."""

        def cleared(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            return member

        with tarfile.open(self.archive, "w:xz", preset=9) as archive:
            archive.add(data, "data", filter=cleared)

    def unpacked(self, folder: Path) -> Path:
        """A copy of the data directory; its store is the folder ``store`` in it."""
        with tarfile.open(self.archive) as archive:
            archive.extractall(folder, filter="data")
        # A daemon reports folders that every user may access among its latest problems.
        for path in (folder / "data").rglob("*"):
            path.chmod(path.stat().st_mode & ~0o007)
        (folder / "data").chmod(0o750)
        return folder / "data"


def fixtures() -> list[Fixture]:
    return [Fixture(path.name) for path in sorted(FOLDER.iterdir()) if path.is_dir()]


def tables_of(store: Path) -> list[Table]:
    """The tables of a store in a folder."""
    found = store.glob("[!_]*/*/v1")
    return sorted((path.parent.parent.name, path.parent.name) for path in found)
