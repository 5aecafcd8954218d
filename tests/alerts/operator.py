"""The operator on call, who knows only the alert and its entry of the runbook.

    Where to look first ─▶ the entry of each alert: "Look at" ─▶ "Do" for the cause that was seen

The operator types exactly the commands of the runbook. A command of "Look at" must print what
the entry says. Where an entry has several causes, the remedy is that of the observed cause.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.alerts.site import WHO, Site
from tests.readme.tour import Shell
from tests.runbook.acting import Act, acts, fits

FIRST = "Where to look first"
MACHINE = Path(__file__).with_name("machine.sh")
SHOWN_PORTS = ("8082", "8080")


class Operator:
    """A shell at the machine of a site. Leaving it ends everything that was started in it."""

    def __init__(self, site: Site, page: str) -> None:
        self._site = site
        self._page = page
        home = site.folder / "home"
        home.mkdir()
        unit = site.folder / "unit"
        unit.mkdir()
        self._describe_unit(unit)
        secret = site.secured.tokens[WHO] if site.secured is not None else ""
        (home / "token").write_text(secret + "\n")
        daemon = site.daemon
        places = {
            **site.etc,
            "/var/lib/ingester": daemon.data_dir,
            "/srv/lake": site.lake,
            "/home/me": home,
            **site.places,
        }
        ports = dict(zip(SHOWN_PORTS, map(_port, (daemon.flight, daemon.http)), strict=True))
        self._shell = Shell(home, ports, places, {"SITE": str(unit)})
        self._shell.run_text(MACHINE.read_text())
        kind = "With TLS and tokens" if site.secured is not None else "Without TLS and tokens"
        self._act([each for each in acts(page, FIRST) if each.cause in (None, kind)], FIRST)

    def __enter__(self) -> Operator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shell.close()

    def look(self, entry: str) -> None:
        """Type the "Look at" commands of an entry.

        Raises:
            AssertionError: The output is not the described one.
        """
        self._act([each for each in acts(self._page, entry) if each.part == "Look at"], entry)

    def help(self, entry: str, cause: str | None) -> None:
        """Type the commands that help against a cause."""
        found = [each for each in acts(self._page, entry) if each.part == "Do"]
        self._act([each for each in found if each.cause in (None, cause)], entry)

    def _act(self, found: list[Act], where: str) -> None:
        for _, _, step in found:
            printed = self._shell.run(step)
            told = f"{where}: $ {step.text}\n{printed}"
            assert fits(step.expected, printed), told
            assert step.expected or self._shell.status == 0, told

    def _describe_unit(self, unit: Path) -> None:
        """Write the service manager's description of the daemon to files."""
        daemon = self._site.daemon
        code = daemon.process.poll()
        ended = "running" if code is None else f"code=exited, status={code}"
        if code is not None and code < 0:
            ended = f"code=killed, signal={signal.Signals(-code).name.removeprefix('SIG')}"
        (unit / "ended").write_text(f"Main PID: {daemon.pid} ({ended})\n")
        (unit / "pid").write_text(str(daemon.pid))
        (unit / "stderr").symlink_to(daemon.stderr_file)
        launch = daemon.launch
        settings: Mapping[str, str] = {
            f"INGESTER_{key.upper()}": str(value) for key, value in launch.settings.items()
        }
        environment = {"INGESTER_ID": "tested", **launch.environment, **settings}
        lines = [f"{key}={shlex.quote(value)}" for key, value in environment.items()]
        (unit / "environment").write_text("\n".join(lines) + "\n")
        listeners = [f"127.0.0.1:{_port(url)}" for url in (daemon.flight, daemon.http)]
        arguments = ["--data-dir", str(daemon.data_dir), "--flight", listeners[0]]
        (unit / "arguments").write_text(" ".join([*arguments, "--http", listeners[1]]))


def _port(url: str) -> str:
    return url.rpartition(":")[2]
