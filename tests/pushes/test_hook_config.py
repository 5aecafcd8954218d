"""Invalid hooks are refused by name at configuration, not during a push."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ingester.pushes.config import HookConfigError, HookSettings, hook_settings
from ingester.pushes.hook_loading import load_hooks
from tests.pushes import some_hooks

HERE = "tests.pushes.some_hooks"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "pushes.md"
SECTION = f"""
classes = ["{HERE}:Gate"]
timeout = "5s"
wait_interval = "2m"
on_error = "proceed"

[config]
"gate.open" = "no"

[tables."shop/visits"]
"gate.open" = "yes"
"""


def test_a_section_of_a_file_is_read() -> None:
    settings = hook_settings(tomllib.loads(SECTION))
    assert settings.timeout == 5
    assert settings.patience.interval.total_seconds() == 120
    assert settings.config_of("shop", "visits") == {"gate.open": "yes"}
    assert settings.config_of("shop", "orders") == {"gate.open": "no"}
    (hook,) = load_hooks(settings)
    assert hook.name == f"{HERE}:Gate"


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"timeout": "soon"}, "hooks.timeout: not a duration: 'soon'"),
        ({"timeout": 0}, "hooks.timeout: 0.0 is not above 0"),
        ({"threads": 0}, "hooks.threads: 0 is out of range"),
        ({"tiemout": "5s"}, "hooks: Object contains unknown field `tiemout`"),
        ({"on_error": "rollback"}, "hooks: Invalid enum value 'rollback'"),
        ({"classes": ["acme"]}, "hooks.classes: 'acme' is not package.module:Class"),
        ({"classes": ["a:B", "a:B"]}, "hooks.classes names a class twice"),
        ({"tables": {"visits": {}}}, "hooks.tables: 'visits' is not namespace/table"),
        ({"config": {"delay": 5}}, "hooks: Expected `str`, got `int`"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(section: dict[str, object], says: str) -> None:
    with pytest.raises(HookConfigError) as refused:
        hook_settings(section)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no.such.module:Hook", "its import failed: ModuleNotFoundError: No module named"),
        (f"{HERE}:Absent", f"module {HERE} has no 'Absent'"),
        (f"{HERE}:NoHook", "it is not a subclass of ingester.pushes.LifecycleHooks"),
        (f"{HERE}:WrongSignature", "pre_version_swap(self)"),
        (
            f"{HERE}:CannotBeMade",
            "CannotBeMade: its constructor or validate_hook_config failed: OSError: no model there",
        ),
        (f"{HERE}:NeverMade", "validate_hook_config failed: no answer within 0.2 s"),
        (f"{HERE}:NeverValid", "validate_hook_config failed: no answer within 0.2 s"),
        (f"{HERE}:ExitsWhenMade", "validate_hook_config failed: SystemExit: 0"),
        (f"{HERE}:ExitsWhenChecked", "validate_hook_config failed: KeyboardInterrupt"),
        (f"{HERE}:OddOptions", "options is ['delay'], not a mapping"),
        (f"{HERE}_that_hang:Hook", "its import failed: no answer within 0.2 s"),
        (f"{HERE}_that_exit:Hook", "its import failed: SystemExit: 0"),
    ],
)
def test_a_class_that_is_none_is_refused_by_name(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_hooks_that_hang.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "some_hooks_that_exit.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = name.replace("tests.pushes.some_hooks_that", "some_hooks_that")
    some_hooks.let_go.clear()
    with pytest.raises(HookConfigError) as refused:
        load_hooks(HookSettings(classes=(name,), timeout=0.2 if "0.2" in says else 30.0))
    some_hooks.let_go.set()
    assert name in str(refused.value)
    assert says in str(refused.value)


def test_a_bad_override_is_refused_with_its_table() -> None:
    settings = HookSettings(
        classes=(f"{HERE}:Gate",), tables={"shop/visits": {"gate.open": "maybe"}}
    )
    with pytest.raises(HookConfigError) as refused:
        load_hooks(settings)
    assert str(refused.value) == (
        f"hooks.tables.\"shop/visits\": {HERE}:Gate: gate.open: 'maybe' is neither"
    )


def test_a_key_that_no_hook_knows_is_refused_where_all_say_what_they_know() -> None:
    with pytest.raises(HookConfigError, match=r"no hook knows gate\.opne; known are gate\.open"):
        load_hooks(HookSettings(classes=(f"{HERE}:Gate",), config={"gate.opne": "yes"}))
    classes = (f"{HERE}:Gate", f"{HERE}:Raises")
    load_hooks(HookSettings(classes=classes, config={"gate.opne": "yes"}))


def test_the_section_on_the_page_is_one_that_is_read() -> None:
    (section,) = re.findall(r"```toml\n(\[hooks\].*?)```", PAGE.read_text(), flags=re.DOTALL)
    settings = hook_settings(tomllib.loads(section)["hooks"])
    assert settings.config_of("shop", "visits") == {"gate.open": "yes"}
    defaults = HookSettings()
    for key in ("threads", "timeout", "wait_interval", "wait_deadline", "on_deadline"):
        assert getattr(settings, key) == getattr(defaults, key)
