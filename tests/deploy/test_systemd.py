"""The systemd units: restarts, timeouts and permissions."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from ingester.config.sources import load
from ingester.config.units import parse_duration

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy" / "systemd"
MOST_EXPOSED = 2.0
MARGIN_S = 30.0
"""The service manager waits this much longer than the daemon's own deadline."""


def _service(name: str) -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNITS / name)
    return unit["Service"]


def test_the_unit_restarts_neither_after_damage_nor_after_fencing() -> None:
    service = _service("ingester.service")
    assert service["Restart"] == "on-failure"
    assert {"5", "6"} <= set(service["RestartPreventExitStatus"].split())


def test_the_unit_waits_for_what_the_daemon_tells_and_longer_than_its_deadline() -> None:
    service = _service("ingester.service")
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert parse_duration(service["WatchdogSec"]) >= 30
    settings = load({}, {}, UNITS / "ingester.toml").settings
    assert parse_duration(service["TimeoutStopSec"]) == settings.stop_deadline + MARGIN_S
    # The docs must state the actual deadline.
    said = f"{settings.stop_deadline:g} s"
    for text in (UNITS / "ingester.service", ROOT / "docs" / "deployment.md"):
        assert re.search(rf"stop_deadline.{{0,40}}{said}", text.read_text(), re.DOTALL), text


def test_the_sample_settings_name_only_known_keys() -> None:
    sample = UNITS / "ingester.toml"
    loaded = load({}, {}, sample)
    assert str(loaded.settings.data_dir) == tomllib.loads(sample.read_text())["data_dir"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda unit: unit.name)
def test_a_unit_may_do_little(unit: Path) -> None:
    asked = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout
    (level,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert float(level) < MOST_EXPOSED
