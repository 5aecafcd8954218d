"""The base class of hooks, and the example in its documentation."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ingester.lifecycle
import ingester.pushes
from ingester.pushes import PROCEED, Decision, LifecycleHooks, Status
from ingester.pushes.hook_loading import load_hook
from ingester.pushes.hooks import METHODS, HookContext, PushView, RegionView
from ingester.pushes.shipped import HealthCheck
from tests.pushes.world import BEGAN

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pushes.md"


def a_context(method: str = "pre_version_swap", **changes: Any) -> HookContext:
    view = RegionView("a", Status.WAITING, BEGAN, 2, 1)
    push = PushView("p1", "shop", "visits", Status.WAITING, BEGAN, BEGAN, {"ticket": "42"})
    context = HookContext(
        method=method,
        push=push,
        regions=(view,),
        region="a",
        first_called_at=BEGAN,
        now=BEGAN,
        deadline=BEGAN + timedelta(days=1),
    )
    return msgspec.structs.replace(context, **changes)


def test_the_class_has_every_method_and_each_default_changes_nothing() -> None:
    hooks = LifecycleHooks({})
    written = {name for name, _ in inspect.getmembers(LifecycleHooks, inspect.isfunction)}
    assert written - {"__init__"} == set(METHODS)
    for method in METHODS.values():
        expected = PROCEED if method.answers else None
        assert getattr(hooks, method.name)(a_context(method.name)) == expected


def test_the_page_says_of_each_method_what_it_may_answer() -> None:
    rows = re.findall(r"^\| (`.*?) \| .*? \| (.*?) \|$", PAGE.read_text(), re.MULTILINE)
    told = {name: says for name, says in rows if name.strip("`").startswith(("pre", "post", "val"))}
    assert {name.split("`")[1] for name in told} == {
        name
        for name in METHODS
        if name.startswith("pre") or name.replace("post_", "pre_") not in METHODS or name[0] == "v"
    }
    for name, says in told.items():
        method = METHODS[name.split("`")[1]]
        if not method.answers:
            assert says == "nothing"
        elif method.answers == set(Decision):
            assert says.startswith("all four")
        else:
            assert says.startswith("proceed, abort")
        if ", `post_…`" in name:
            after = METHODS[method.name.replace("pre_", "post_", 1)]
            assert says.endswith("all four, both" if after.answers else "post: nothing")


def test_the_example_of_the_page_does_what_it_says() -> None:
    (example,) = re.findall(
        r"```python\n(from ingester.pushes .*?)```", PAGE.read_text(), flags=re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(compile(example, str(PAGE), "exec"), names)
    hook = names["Errors"]({})
    thursday = a_context()
    assert hook.pre_version_swap(thursday) == PROCEED
    friday = a_context(now=BEGAN + timedelta(days=1))
    assert hook.pre_version_swap(friday).decision is Decision.WAIT


def test_a_context_is_sent_as_json() -> None:
    plain = a_context().to_json()
    assert plain["push"]["status"] == "WAITING"
    assert plain["regions"][0]["previous"] == 1
    assert plain["now"] == "2026-11-26T08:00:00Z"
    assert msgspec.json.decode(msgspec.json.encode(plain)) == plain


def test_a_context_knows_its_regions_by_name() -> None:
    assert a_context().view("a") == a_context().view()
    with pytest.raises(LookupError, match="push p1 has no region 'z'"):
        a_context().view("z")


def test_hooks_written_against_the_former_names_still_load() -> None:
    names = [name for name in vars(ingester.lifecycle) if not name.startswith("_")]
    assert len(names) > 15
    assert all(getattr(ingester.lifecycle, n) is getattr(ingester.pushes, n) for n in names)
    former = load_hook("ingester.lifecycle.shipped.health_check:HealthCheck")
    assert former.make is HealthCheck
    assert former.name == "ingester.lifecycle.shipped.health_check:HealthCheck"
