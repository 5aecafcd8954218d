"""Scrapes before, during and after a fault, made into a test for ``promtool test rules``.

    before: 10 min ─▶ during: 20 min ─▶ after: 20 min      each figure as it was scraped

This way, rules that wait for a quarter of an hour are tried in a second. An alert counts as
fired in a phase if it fired at any moment of it, except the first two minutes, in which the
previous phase ends.
"""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from tests.alerts.prometheus import promtool
from tests.alerts.rules import RULE_FILES, expressions, metrics_in

Key = tuple[str, tuple[tuple[str, str], ...]]
Scrape = Mapping[Key, float]
STEP_S = 15
PHASES = (("before", 10), ("during", 20), ("after", 20))
"""The minutes of each phase."""
SETTLES_MIN = 2


def scrape(http: str | None) -> Scrape | None:
    """Return the samples of a daemon that rules use; None if it does not answer."""
    if http is None:
        return None
    # The certificate is not under test here: the address is a loopback one.
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(http + "/metrics", context=trusting, timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    families = text_string_to_metric_families(text)
    return samples_of(
        (each.name, each.labels, each.value) for family in families for each in family.samples
    )


def samples_of(samples: Any) -> Scrape:
    """Return the samples with names, labels and values that rules use."""
    asked = set().union(*map(metrics_in, expressions().values()))
    found: dict[Key, float] = {}
    for name, labels, value in samples:
        if metrics_in(name) & asked:
            found[name, tuple(sorted(labels.items()))] = float(value)
    return found


def check_fired(
    folder: Path, scrapes: Sequence[Scrape | None], fired: Sequence[Collection[str]]
) -> None:
    """Raise AssertionError unless in each phase exactly these alerts fired, one each.

    Args:
        scrapes: Before, during and after; None where the daemon does not answer.
        fired: The names of the alerts, likewise.
    """
    counts = [minutes * 60 // STEP_S for _, minutes in PHASES]
    keys: set[Key] = {key for each in scrapes if each is not None for key in each}
    series = [_series("up", (), [float(each is not None) for each in scrapes], counts)]
    for name, labels in sorted(keys):
        values = [None if each is None else each.get((name, labels)) for each in scrapes]
        series.append(_series(name, labels, values, counts))
    end, tests = 0, []
    for (_, minutes), expected in zip(PHASES, fired, strict=True):
        end += minutes
        tests.append(_fires_within(minutes - SETTLES_MIN, end, expected))
    _run(folder, [_test(series, tests)])


def check_fires(folder: Path, cases: Mapping[str, tuple[Mapping[str, str], int]]) -> None:
    """Raise AssertionError unless each alert, and no other one, is fired by its series.

    Args:
        cases: By alert, its series in promtool's notation, a value each 15 s, and the minutes. They
            are of a daemon ``a``, which is up and ready unless they say otherwise.
    """
    well = {f'{name}{{job="ingester", instance="a"}}': "1x240" for name in ("up", "ingester_ready")}
    _run(
        folder,
        [
            _test(
                [{"series": name, "values": each} for name, each in {**well, **values}.items()],
                [_fires_within(minutes, minutes, (alert,))],
            )
            for alert, (values, minutes) in cases.items()
        ],
    )


def _test(series: Sequence[Any], expected: Sequence[Any]) -> dict[str, Any]:
    return {"interval": f"{STEP_S}s", "input_series": series, "promql_expr_test": expected}


def _fires_within(minutes: int, end: int, expected: Collection[str]) -> dict[str, Any]:
    within = f'max_over_time(ALERTS{{alertstate="firing"}}[{minutes}m])'
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)]
    return {
        "expr": f"count by (alertname) ({within})",
        "eval_time": f"{end * 60 - STEP_S}s",  # at the end the next phase begins
        "exp_samples": samples,
    }


def _run(folder: Path, tests: Sequence[Any]) -> None:
    document = {
        "rule_files": [str(file) for file in RULE_FILES],
        "evaluation_interval": f"{STEP_S}s",
        "tests": tests,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recorded.test.yaml"
    path.write_text(yaml.safe_dump(document, width=1 << 20))
    promtool("test", "rules", path)


def _series(
    name: str,
    labels: tuple[tuple[str, str], ...],
    values: Sequence[float | None],
    counts: Sequence[int],
) -> dict[str, str]:
    named = {"job": "ingester", "instance": "pod-0", **dict(labels)}
    shown = ", ".join(f'{key}="{_escaped(value)}"' for key, value in named.items())
    steps = [
        "stale" if value is None else repr(value)
        for value, count in zip(values, counts, strict=True)
        for _ in range(count)
    ]
    return {"series": f"{name}{{{shown}}}", "values": " ".join(steps)}


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
