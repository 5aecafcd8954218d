"""Where a daemon of the campaign lives, and the possible troubles of that place.

    disk     log and store on one small file system that can fill up; the clock jumps
    cleaned  the same with a right clock, and with clean-up of almost all old files
    s3       the log on local disk, the store behind a proxy that fails and lies; clean-up, too: by
             the server's clock, while the daemon's own jumps

A clock of the store itself that is far ahead while a table is cleaned, and right again
afterwards, stops that table's commits until that time is reached; no world of the campaign has
this trouble.

:meth:`World.heal` undoes every trouble. The final readers get the store itself (``store``),
bypassing every fault.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import TracebackType

from tests.crash.reading import StoreAt
from tests.crash.store_proxy import PROFILES, StoreProxy
from tests.drivers.daemon import Launch
from tests.drivers.s3_server import S3Server

FILE_SYSTEM_BYTES = 192 << 20
DAY_S = 86_400.0
CLEANED = {"manifest__retain": "1s", "manifest__orphan_grace": "2s"}
JUMPS_S = (-2 * DAY_S, -3600.0, -5.0, 5.0, 3600.0, 2 * DAY_S)


class FaultyLaunch(Launch):
    """A daemon whose wall clock can jump; its log is next to its world."""

    command = (sys.executable, "-m", "tests.crash.faulty", "serve")

    def __init__(self, world: World, settings: dict[str, object]) -> None:
        environment = {"CRASH_CLOCK": str(world.clock_file)}
        super().__init__(
            world.data_dir, environment, world.arguments, {**settings, **world.settings}
        )
        self._stderr_file = world.folder / "daemon.stderr"

    @property
    def stderr_file(self) -> Path:
        """See `Launch.stderr_file`."""
        return self._stderr_file


class World:
    """The common parts: a data directory and a clock."""

    troubles: tuple[str, ...] = ("clock",)
    """The possible troubles of this world."""
    arguments: tuple[str, ...] = ()
    settings: Mapping[str, object] = {}
    """Settings of every daemon in this world."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder = folder
        self.random = random
        self.clock_file = folder / "clock"
        self.data_dir = folder / "daemon"
        self.counts: Counter[str] = Counter()
        """The number of troubles so far, by kind."""
        self.suffers = False
        """Whether a trouble is still to be healed."""
        folder.mkdir(parents=True)

    @property
    def store(self) -> StoreAt:
        """The store, bypassing every fault."""
        return StoreAt(f"file://{self.data_dir / 'store'}", {})

    def launch(self, settings: dict[str, object]) -> Launch:
        """How a daemon is started in this world."""
        return FaultyLaunch(self, settings)

    def befall(self, trouble: str) -> None:
        """Cause a trouble until :meth:`heal`; a clock keeps the time to which it jumped."""
        self.counts[trouble] += 1
        if trouble == "clock":
            self.clock_file.write_text(str(self.random.choice(JUMPS_S)))
        else:
            self.suffers = True

    def heal(self) -> None:
        """Undo the troubles that can be undone."""
        self.suffers = False

    def keep_evidence(self) -> None:
        """Copy the world's evidence after a finding, since it would vanish with the world."""

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        self.heal()


class DiskWorld(World):
    """On a file system of its own where one can be mounted; otherwise the disk never fills up."""

    def __init__(self, folder: Path, random: Random) -> None:
        super().__init__(folder, random)
        mount_point = folder / "disk"
        mount_point.mkdir()
        self._ballast = mount_point / "ballast"
        self._mounted = mount(mount_point)
        if self._mounted:
            self.data_dir = mount_point / "daemon"
            self.troubles = ("clock", "full")

    def befall(self, trouble: str) -> None:
        """See `World.befall`."""
        super().befall(trouble)
        if trouble == "full":
            self._fill()

    def _fill(self) -> None:
        with self._ballast.open("wb") as file:
            size, piece = 0, FILE_SYSTEM_BYTES
            while piece >= os.sysconf("SC_PAGE_SIZE"):
                try:
                    os.posix_fallocate(file.fileno(), size, piece)
                    size += piece
                except OSError as exc:
                    if exc.errno != errno.ENOSPC:
                        raise
                    piece //= 2

    def heal(self) -> None:
        """See `World.heal`."""
        super().heal()
        self._ballast.unlink(missing_ok=True)

    def keep_evidence(self) -> None:
        """See `World.keep_evidence`."""
        if self._mounted and self.data_dir.exists():
            shutil.copytree(self.data_dir, self.folder / "daemon")

    def __exit__(self, *details: object) -> None:
        self.heal()
        if self._mounted:
            subprocess.run(["umount", "--lazy", self.data_dir.parent], check=True)


class CleanedWorld(DiskWorld):
    """A world in which only the disk has troubles."""

    settings = CLEANED

    def __init__(self, folder: Path, random: Random) -> None:
        super().__init__(folder, random)
        self.troubles = ("full",) if self._mounted else ()


class S3World(World):
    """The store is a real S3 server's, seen through a proxy."""

    settings = CLEANED

    def __init__(self, folder: Path, random: Random) -> None:
        super().__init__(folder, random)
        self.troubles = ("clock", *(f"store {profile}" for profile in PROFILES))
        self._server = S3Server.start()
        self._server.make_bucket("lake")
        self._proxy = StoreProxy(self._server.url, random.randrange(1 << 30))
        config = folder / "config.toml"
        options = self._server.storage_options | {"endpoint_url": self._proxy.url}
        options |= {"connect_timeout_s": 1.0, "read_timeout_s": 1.0}
        lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
        config.write_text('store = "s3://lake/crash"\n[store_options]\n' + "\n".join(lines))
        self.arguments = ("--config", str(config))

    @property
    def store(self) -> StoreAt:
        """See `World.store`."""
        return StoreAt("s3://lake/crash", self._server.storage_options)

    def befall(self, trouble: str) -> None:
        """See `World.befall`."""
        super().befall(trouble)
        if trouble.startswith("store "):
            self._proxy.suffer(trouble.removeprefix("store "))

    def heal(self) -> None:
        """See `World.heal`."""
        super().heal()
        self._proxy.heal()
        for fault, number in self._proxy.faults.items():
            self.counts[f"request {fault}"] = number

    def __exit__(self, *details: object) -> None:
        self.heal()
        self._proxy.close()
        self._server.stop()


WORLDS: dict[str, type[World]] = {"disk": DiskWorld, "cleaned": CleanedWorld, "s3": S3World}


def mount(folder: Path) -> bool:
    """Return whether a small in-memory file system could be mounted there."""
    options = f"size={FILE_SYSTEM_BYTES}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if shutil.which("mount") is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def no_small_disk(folder: Path) -> str | None:
    """Return why no disk can be filled here, after trying."""
    tried = folder / "tried"
    tried.mkdir()
    if not mount(tried):
        return "a tmpfs cannot be mounted here, which takes the rights of root"
    subprocess.run(["umount", str(tried)], check=True)
    return None
