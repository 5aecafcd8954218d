"""The configuration of pushes: each setting of a file takes effect or is refused by name."""

from __future__ import annotations

import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ingester.pushes.config import (
    HookConfigError,
    PushConfigError,
    PushSettings,
    push_config,
    read_push_config,
)
from ingester.pushes.hook_loading import load_hooks
from ingester.pushes.states import RegionOrder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pushes.md"
FILE = """
[regions.berlin]
url = "s3://lake-berlin/prod"
endpoints = ["grpc://10.0.0.5:8082", "grpc+tls://10.0.0.6:8082"]
store_options = { key = "env:KEY", secret = "file:SECRET", client_kwargs = { a = "env:A" } }

[regions.amsterdam]
url = "file:///srv/amsterdam"

[hooks]
classes = ["tests.pushes.some_hooks:Gate"]
wait_interval = "5s"
config = { "gate.open" = "no" }

[pushes]
order = "target_first"
target = "amsterdam"
unreachable_after = "5m"
on_unreachable = "skip"
followers_deadline = "90s"
on_followers = "proceed"
on_failure = "rollback"
retain = "7d"
"""


def test_a_file_is_read_in_its_order_with_its_secrets_and_shows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, file = tmp_path / "secret", tmp_path / "pushes.toml"
    secret.write_text("hush-1\n")
    file.write_text(FILE.replace("SECRET", str(secret)))
    monkeypatch.setenv("KEY", "hush-2")
    monkeypatch.setenv("A", "b")
    config = read_push_config(file)
    assert config.names == ("berlin", "amsterdam")
    options = {"key": "hush-2", "secret": "hush-1", "client_kwargs": {"a": "b"}}
    assert config.region("berlin").store_options == options
    assert "hush" not in repr(config)
    assert config.order() == RegionOrder(("berlin", "amsterdam"), "target_first", "amsterdam")
    assert config.order(("amsterdam",)).regions == ("amsterdam",)
    rules = config.rules()
    assert (rules.unreachable_after, rules.followers_deadline) == (
        timedelta(minutes=5),
        timedelta(seconds=90),
    )
    assert (rules.on_unreachable, rules.on_followers, rules.on_failure) == (
        "skip",
        "proceed",
        "rollback",
    )
    assert rules.patience.interval == timedelta(seconds=5)
    assert config.pushes.retain == 7 * 86400
    with pytest.raises(PushConfigError, match="target 'amsterdam' is none of berlin"):
        config.order(("berlin",))
    with pytest.raises(PushConfigError, match=r"no region 'paris' is .* berlin, amsterdam"):
        config.order(("berlin", "paris"))


A = {"url": "file:///a"}


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({}, "regions: there is none"),
        ({"regions": {"a": A}, "region": {}}, "unknown region; known are regions, hooks, pushes"),
        ({"regions": {"a": 3}}, "regions.a: 3 is not a table"),
        ({"regions": {"a": {}}}, "regions.a: Object missing required field `url`"),
        ({"regions": {"a": {"url": ""}}}, "regions.a.url: it is empty"),
        ({"regions": {"a/b": A}}, "regions: 'a/b' does not match"),
        ({"regions": {"a": {**A, "uri": "x"}}}, "regions.a: Object contains unknown field `uri`"),
        ({"regions": {"a": {**A, "name": "x"}}}, "regions.a: unknown key 'name'"),
        ({"regions": {"a": A, "b": {"url": "file:///a/"}}}, "two have the url file:///a"),
        (
            {"regions": {"a": {**A, "endpoints": ["http://h:1"]}}},
            "regions.a.endpoints: endpoint 'http://h:1'",
        ),
        (
            {"regions": {"a": {**A, "store_options": {"key": "env:NOT_THERE"}}}},
            "regions.a.store_options.key: environment variable 'NOT_THERE' is not set",
        ),
        (
            {"regions": {"a": {**A, "store_options": {"x": {"y": "file:/not/there"}}}}},
            "regions.a.store_options.x.y: ",
        ),
        ({"regions": {"a": A}, "pushes": {"order": "any"}}, "pushes: Invalid enum value 'any'"),
        ({"regions": {"a": A}, "pushes": {"retain": "soon"}}, "pushes.retain: not a duration"),
        ({"regions": {"a": A}, "pushes": {"target": "a"}}, "pushes.target: it goes together"),
        (
            {"regions": {"a": A}, "pushes": {"order": "target_first", "target": "b"}},
            "pushes: target 'b' is none of a",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(tables: dict[str, Any], says: str) -> None:
    with pytest.raises(PushConfigError) as refused:
        push_config(tables)
    assert says in str(refused.value)


def test_the_file_on_the_page_is_one_that_is_read() -> None:
    (text,) = re.findall(r"```toml\n(\[regions.*?)```", PAGE.read_text(), flags=re.DOTALL)
    tables = tomllib.loads(text.replace("file:/run/secrets/berlin", "env:KEY"))
    config = push_config(tables, {"BERLIN_KEY": "a", "KEY": "b"})
    assert config.names == ("berlin", "oregon")
    assert load_hooks(config.hooks)


def test_the_defaults_on_the_page_are_those_of_the_settings() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE.read_text(), flags=re.MULTILINE))
    regions = {"a": {"url": "file:///srv/a"}}
    assert push_config({"regions": regions, "pushes": told}).pushes == PushSettings()
    assert set(told) == set(PushSettings.__struct_fields__) - {"target"}


def test_a_file_that_cannot_be_read_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "pushes.toml"
    with pytest.raises(PushConfigError, match=r"pushes\.toml: .*No such file"):
        read_push_config(file)
    file.write_text("[regions.a]\nurl = 'file:///a'\n[hooks]\ntimeout = 'soon'\n")
    with pytest.raises(HookConfigError, match=r"pushes\.toml: hooks\.timeout: not a duration"):
        read_push_config(file)
