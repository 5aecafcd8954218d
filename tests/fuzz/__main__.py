"""``make fuzz``: the long form, over every decoder and then over a running daemon.

Each decoder gets its share of the time in its own process, guided by coverage if atheris is
installed and otherwise by hypothesis. Findings stay in a folder, ready to be put under
``regressions/``; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.drivers.daemon import ROOT, Daemon
from tests.fuzz.attacked import ADDRESS_SPACE_BYTES, Attacked
from tests.fuzz.attacks import ATTACKS, attack
from tests.fuzz.child import noted
from tests.fuzz.targets import TARGETS

GRACE_S = 300.0
"""Extra time of a process, to start and for its last input. The process itself detects an input
that takes too long; a slow machine is not a finding."""
ROUND = 200
"""Attempts between two checks of the daemon."""


def main() -> int:
    """Return exit code 0 if there are no findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="in all (default 300)")
    parser.add_argument(
        "--target", action="append", choices=[*TARGETS, *ATTACKS], help="only these"
    )
    parser.add_argument("--engine", choices=["atheris", "hypothesis"], default=_engine())
    options = parser.parse_args()
    chosen = options.target or [*TARGETS, *ATTACKS]
    share_s = options.seconds / len(chosen)
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    print(f"{len(chosen)} targets, {share_s:.0f} s each, by {options.engine}, in {folder}")
    found = [name for name in chosen if name in TARGETS if not _decoder(name, options, folder)]
    attacks = [name for name in chosen if name in ATTACKS]
    if attacks:
        found += _daemon(attacks, share_s, folder)
    print(f"found something in: {', '.join(found)}" if found else "nothing found")
    return 1 if found else 0


def _engine() -> str:
    return "atheris" if importlib.util.find_spec("atheris") else "hypothesis"


def _decoder(name: str, options: argparse.Namespace, folder: Path) -> bool:
    """Whether a target passed its share of the time."""
    share_s = options.seconds / len(options.target or [*TARGETS, *ATTACKS])
    note = folder / f"{name}.note"
    command = [sys.executable, "-m", "tests.fuzz.child", name, "--note", str(note)]
    command += ["--seconds", str(share_s), "--examples", "2000"]
    if options.engine == "atheris":
        command += ["--atheris", str(folder / name)]
    said = ""
    with (folder / f"{name}.log").open("w+") as log:
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                timeout=share_s + GRACE_S,
                check=False,
            )
            code: int | str = done.returncode
            said = done.stdout
            log.write(said if code else "")
        except subprocess.TimeoutExpired:
            code = "time out"
    if code == 0:
        print(f"  {name:16} {json.loads(said.splitlines()[-1])[name]}", flush=True)
        note.unlink()
        return True
    input_file = folder / f"{name}.bin"
    input_file.write_bytes(noted(note))
    print(f"  {name:16} FOUND ({code}): {input_file}, {folder / name}.log", flush=True)
    return False


def _daemon(names: list[str], share_s: float, folder: Path) -> list[str]:
    """Return the attacks that did harm."""
    with Daemon.start(folder / "data", memory__limit="512MiB") as daemon:
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES,) * 2)
        attacked = Attacked(daemon)
        for name in names:
            before, until = attacked.attempts, time.monotonic() + share_s
            try:
                while time.monotonic() < until:
                    attack(attacked, name, ROUND, until)
                    attacked.check()
                attacked.check_persisted()
            except BaseException as exc:  # of any kind: hypothesis groups several
                if isinstance(exc, KeyboardInterrupt):
                    raise
                (folder / f"{name}.log").write_text("".join(_lines(exc)))
                print(f"  {name:16} FOUND: {folder / name}.log", flush=True)
                return [name]
            done = attacked.attempts - before
            print(
                f"  {name:16} {{'inputs': {done}, 'peak_mib': {attacked.peak_bytes >> 20}}}",
                flush=True,
            )
    return []


def _lines(exc: BaseException) -> list[str]:
    import traceback

    return traceback.format_exception(exc)


if __name__ == "__main__":
    sys.exit(main())
