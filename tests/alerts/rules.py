"""The rules and the dashboard of ``deploy/``, as data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULE_FILES = tuple(sorted((DEPLOY / "prometheus").glob("*.rules.yaml")))
DASHBOARD = DEPLOY / "grafana" / "ingester.json"
RUNBOOK_URL = re.compile(r"deploy/RUNBOOK\.md#([\w-]+)")


class Alert(NamedTuple):
    """An alert as defined in its file."""

    name: str
    expr: str
    severity: str
    annotations: dict[str, str]

    @property
    def entry(self) -> str:
        """The runbook entry that it links to; empty if it links to none."""
        found = RUNBOOK_URL.fullmatch(self.annotations.get("runbook_url", ""))
        return found[1] if found else ""


def _rules() -> Iterator[dict[str, Any]]:
    for file in RULE_FILES:
        for group in yaml.safe_load(file.read_text())["groups"]:
            yield from group["rules"]


def alerts() -> list[Alert]:
    """All alerts."""
    return [
        Alert(each["alert"], each["expr"], each["labels"]["severity"], each["annotations"])
        for each in _rules()
        if "alert" in each
    ]


def recorded_names() -> set[str]:
    """The names that recording rules define."""
    return {each["record"] for each in _rules() if "record" in each}


def expressions() -> dict[str, str]:
    """The expression of each rule, by the name of the alert or the recorded series."""
    return {each.get("alert") or each["record"]: each["expr"] for each in _rules()}


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def panels() -> list[dict[str, Any]]:
    """The panels of a dashboard, those of rows included."""
    found: list[dict[str, Any]] = []
    for panel in dashboard()["panels"]:
        found += [panel, *panel.get("panels", [])]
    return found


def queries() -> dict[str, list[str]]:
    """The queries of each panel that has any, by its title."""
    return {
        panel["title"]: [target["expr"] for target in panel["targets"]]
        for panel in panels()
        if panel.get("targets")
    }


def metrics_in(expr: str) -> set[str]:
    """The metrics in an expression, histograms without their suffixes."""
    named = re.findall(r"\b(?:ingester|process)_\w+", expr)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in named}
