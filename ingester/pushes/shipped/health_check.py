"""A region is healthy before its swap, and stays so for a while after it.

    before    unhealthy ─▶ wait (or abort)                       the push did not do that
    after     every ``wait_interval`` for ``watch``: unhealthy ─▶ rollback (or abort)

``HealthCheck`` asks a URL, ``PrometheusCheck`` a query whose one value has to be within bounds.
Law of this file: what cannot be known is not healthy. No answer, no value, NaN, or more than one
series is never taken for a good one; a check is tried a few times before it counts.
"""

from __future__ import annotations

import math
import time
import urllib.parse
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from ingester.pushes.answers import PROCEED, Answer, abort, rollback, wait
from ingester.pushes.contexts import ConfigContext, HookContext
from ingester.pushes.hooks import LifecycleHooks
from ingester.pushes.shipped.http_calls import NoAnswer, call, checked_url, filled
from ingester.pushes.shipped.options import checked, choice, duration, number, required


class _Check(LifecycleHooks):
    """Asks whether a region is healthy; ``name`` is the first part of its keys."""

    asks_anew: ClassVar[bool] = True
    name: ClassVar[str]

    @abstractmethod
    def fault(self, context: HookContext) -> str | None:
        """Return what is wrong with the region, None where it is healthy."""

    def read(self) -> None:
        """Read the whole configuration, or raise ``ValueError``."""
        checked_url(f"{self.name}.url", required(self.config, f"{self.name}.url"))
        choice(self.config, f"{self.name}.before", "wait", "abort")
        choice(self.config, f"{self.name}.after", "rollback", "abort")
        for key, default in (("watch", "5m"), ("timeout", "5s"), ("pause", "1s")):
            duration(self.config, f"{self.name}.{key}", default)
        if self._tries() < 1:
            raise ValueError(f"{self.name}.tries: it is to be tried at least once")

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check everything that can be said of the check."""
        return checked(self.read)

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Wait for the region to be healthy."""
        fault = self._lasting_fault(context)
        if fault is None:
            return PROCEED
        return abort(fault) if self._says("before", "wait", "abort") == "abort" else wait(fault)

    def post_version_swap(self, context: HookContext) -> Answer:
        """Watch the region for a while, and undo the push when it is not healthy."""
        fault = self._lasting_fault(context)
        if fault is not None:
            back = self._says("after", "rollback", "abort") == "rollback"
            return rollback(fault) if back else abort(fault)
        until = context.view().since + duration(self.config, f"{self.name}.watch", "5m")
        return PROCEED if context.now >= until else wait(f"watched until {until.isoformat()}")

    def _says(self, key: str, default: str, other: str) -> str:
        return choice(self.config, f"{self.name}.{key}", default, other)

    def _tries(self) -> int:
        return int(number(self.config, f"{self.name}.tries", 3) or 0)

    def timeout_s(self) -> float:
        """The seconds that one call may take."""
        return duration(self.config, f"{self.name}.timeout", "5s").total_seconds()

    def _lasting_fault(self, context: HookContext) -> str | None:
        pause_s = duration(self.config, f"{self.name}.pause", "1s").total_seconds()
        fault: str | None = None
        for attempt in range(self._tries()):
            if attempt:
                time.sleep(pause_s)
            fault = self.fault(context)
            if fault is None:
                return None
        return fault


def _keys(name: str, url: str) -> dict[str, str]:
    return {
        f"{name}.url": url,
        f"{name}.watch": "how long after a swap it is asked (5m)",
        f"{name}.before": "what a fault before the swap leads to: wait or abort (wait)",
        f"{name}.after": "what a fault after the swap leads to: rollback or abort (rollback)",
        f"{name}.tries": "so many tries in a row have to fail (3)",
        f"{name}.pause": "the pause between two tries (1s)",
        f"{name}.timeout": "how long one try may take (5s)",
    }


class HealthCheck(_Check):
    """Healthy is what answers a GET of ``health.url`` with a status of 200 to 299."""

    name: ClassVar[str] = "health"
    options: ClassVar[Mapping[str, str] | None] = _keys(
        "health", "what is asked; {region}, {namespace}, {table}, {push_id} are filled in"
    )

    def fault(self, context: HookContext) -> str | None:
        """Return the answer that was no good one."""
        url = filled(self.config["health.url"], context)
        try:
            answer = call(url, self.timeout_s())
        except NoAnswer as exc:
            return str(exc)
        return None if answer.good else f"{url} has answered {answer.status}"


class PrometheusCheck(_Check):
    """Healthy is a region whose query has one value, which is within the bounds."""

    name: ClassVar[str] = "prometheus"
    options: ClassVar[Mapping[str, str] | None] = {
        **_keys("prometheus", "the server, as http://prometheus:9090"),
        "prometheus.query": "the query; {region} and so on are filled in",
        "prometheus.min": "the least value that is healthy",
        "prometheus.max": "the greatest value that is healthy",
    }

    def read(self) -> None:
        """Read the query and its bounds as well."""
        super().read()
        required(self.config, "prometheus.query")
        low, high = self._bounds()
        if low is None and high is None:
            raise ValueError("neither prometheus.min nor prometheus.max is set")
        if low is not None and high is not None and low > high:
            raise ValueError(f"prometheus.min: {low:g} is above prometheus.max, {high:g}")

    def _bounds(self) -> tuple[float | None, float | None]:
        return number(self.config, "prometheus.min"), number(self.config, "prometheus.max")

    def fault(self, context: HookContext) -> str | None:
        """Return why the value is not known, or not within the bounds."""
        query = filled(self.config["prometheus.query"], context)
        asked = urllib.parse.urlencode({"query": query})
        url = f"{self.config['prometheus.url'].rstrip('/')}/api/v1/query?{asked}"
        try:
            answer = call(url, self.timeout_s())
            if not answer.good:
                return f"{query}: the server has answered {answer.status}"
            value = _one_value(answer.body)
        except (NoAnswer, ValueError) as exc:
            return f"{query}: {exc}"
        low, high = self._bounds()
        if math.isnan(value):
            return f"{query} is NaN"
        if low is not None and value < low:
            return f"{query} is {value:g}, below {low:g}"
        if high is not None and value > high:
            return f"{query} is {value:g}, above {high:g}"
        return None


class _Series(msgspec.Struct):
    value: tuple[float, str]


class _Data(msgspec.Struct):
    resultType: str
    result: msgspec.Raw


class _Queried(msgspec.Struct):
    status: str
    data: _Data


def _one_value(body: bytes) -> float:
    try:
        data = msgspec.json.decode(body, type=_Queried).data
        if data.resultType == "scalar":
            return float(msgspec.json.decode(data.result, type=tuple[float, str])[1])
        series = msgspec.json.decode(data.result, type=list[_Series])
    except msgspec.DecodeError as exc:
        raise ValueError(f"the answer is not that of a query for a value ({exc})") from exc
    if len(series) != 1:
        raise ValueError(f"it has {len(series) or 'no'} values, and one is needed")
    return float(series[0].value[1])
