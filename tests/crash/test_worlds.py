"""A world's troubles happen and are undone; a plan contains every kind."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.crash.kills import KINDS, LONG_PAUSE, SHORT_PAUSE, plan
from tests.crash.reading import ROOT
from tests.crash.worlds import FILE_SYSTEM_BYTES, DiskWorld

TROUBLES = ("clock", "full")


def test_a_full_disk_takes_nothing_until_it_is_healed(tmp_path: Path) -> None:
    with DiskWorld(tmp_path / "world", Random(1)) as world:
        if "full" not in world.troubles:
            pytest.skip("no small file system can be mounted here")
        world.data_dir.mkdir()
        file = world.data_dir / "file"
        file.write_bytes(b"before")
        world.befall("full")
        with pytest.raises(OSError, match="No space left"):
            (world.data_dir / "more").write_bytes(b"x" * 8192)
        suffered = [world.suffers]
        world.heal()
        (world.data_dir / "more").write_bytes(b"x" * (FILE_SYSTEM_BYTES // 2))
        assert file.read_bytes() == b"before"
        suffered.append(world.suffers)
        assert suffered == [True, False]
        assert world.counts == {"full": 1}
    assert not world.data_dir.exists()


PROGRAM = """
import sys, time
from pathlib import Path
from tests.crash.faulty import jump_with
true = time.time()
jump_with(Path(sys.argv[1]) / "clock")
from persist.store import open_store
store = open_store(f"file://{sys.argv[1]}/store")
put = store.put("a", b"x")
for moment in (time.time(), store.now().timestamp(), put.at.timestamp(),
               store.exists("a").at.timestamp()):
    print(round((moment - true) / 3600))
"""


@pytest.mark.parametrize(("offset", "hours"), [("-7200", -2), ("86400.0", 24), (None, 0)])
def test_a_clock_that_jumps_moves_every_wall_clock_of_a_daemon(
    tmp_path: Path, offset: str | None, hours: int
) -> None:
    if offset is not None:
        (tmp_path / "clock").write_text(offset)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.split() == [str(hours)] * 4, done.stderr


def test_a_plan_has_every_kind_of_kill_and_of_trouble_and_is_the_same_again() -> None:
    first, second = ([*itertools.islice(plan(3, 2.5, TROUBLES), 80)] for _ in range(2))
    assert first == second
    assert {kill.kind for kill in first} == set(KINDS)
    troubles = [kill.trouble for kill in first if kill.trouble is not None]
    kinds = Counter(trouble.kind for trouble in troubles)
    assert set(kinds) == {SHORT_PAUSE, LONG_PAUSE, *TROUBLES}
    assert any(trouble.outlasts for trouble in troubles)
    assert all(kill.after_s >= t.at_s + t.for_s for kill in first if (t := kill.trouble))
    assert sum(kill.kills for kill in first) > 100
