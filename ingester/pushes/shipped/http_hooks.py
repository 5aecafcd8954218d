"""Hooks that ask or notify other services over HTTP.

    HealthCheck, PrometheusCheck   before a swap: unhealthy ─▶ wait (or abort)
                                   after it, for ``watch``: unhealthy ─▶ rollback (or abort)
    Webhook                        POST {"event": "post_version_swap", "context": {…}}
    Remote                         POST url                              {"context": {…}}
                                   GET  url?push_id=…&method=…&region=…  404: sent again
                                   ◀── 200 {"answer": "proceed", "reason": "…"}, or 202: wait

All of them use :class:`HttpEndpoint`, and do nothing for tables without a URL. Each POST carries an
``Idempotency-Key`` of push, method and region. A health check treats everything unknown as
unhealthy: no answer, no value, NaN, or several series (tests/pushes/test_shipped).
"""

from __future__ import annotations

import http.client
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec

from ingester.pushes.hooks import (
    PROCEED,
    Answer,
    ConfigContext,
    Decision,
    HookContext,
    LifecycleHooks,
    abort,
    readable,
    rollback,
    wait,
)
from ingester.pushes.record import decoded
from ingester.pushes.shipped.options import checked, choice, duration, number, required

MAX_BYTES = 64 << 20
"""A longer response is no answer."""
_CHUNK = 1 << 16


class NoAnswer(Exception):
    """The server did not answer in time, or answered with an error of its own."""


class HttpAnswer(NamedTuple):
    """A status and a body."""

    status: int
    body: bytes

    @property
    def good(self) -> bool:
        """Whether the status is 200 to 299."""
        return 200 <= self.status < 300


class HttpEndpoint(NamedTuple):
    """A URL with a time limit for the whole answer. Redirects are followed, nothing is retried."""

    url: str
    timeout_s: float

    @classmethod
    def of(cls, config: Mapping[str, str], prefix: str) -> HttpEndpoint:
        """Return the endpoint of ``<prefix>.url`` and ``<prefix>.timeout`` (5s).

        Raises:
            ValueError: naming the invalid key.
        """
        url = required(config, f"{prefix}.url")
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{prefix}.url: {url!r} is not http:// or https:// with a host")
        return cls(url, duration(config, f"{prefix}.timeout", "5s").total_seconds())

    def at(self, url: str) -> HttpEndpoint:
        """Return the endpoint with another URL."""
        return self._replace(url=url)

    def with_query(self, **values: str) -> HttpEndpoint:
        """Return the endpoint with query parameters added to its URL."""
        joint = "&" if urllib.parse.urlsplit(self.url).query else "?"
        return self.at(f"{self.url}{joint}{urllib.parse.urlencode(values)}")

    def get(self) -> HttpAnswer:
        """Send a GET.

        Raises:
            NoAnswer: no response, whichever status it would have.
        """
        return self._sent(urllib.request.Request(self.url))

    def post(self, body: object, context: HookContext) -> HttpAnswer:
        """POST a JSON body with the idempotency key of the call.

        Raises:
            NoAnswer: no response, whichever status it would have.
        """
        headers = {"Content-Type": "application/json", "Idempotency-Key": key_of(context)}
        data = msgspec.json.encode(body)
        return self._sent(urllib.request.Request(self.url, data=data, headers=headers))

    def _sent(self, request: urllib.request.Request) -> HttpAnswer:
        until = time.monotonic() + self.timeout_s
        try:
            try:
                answer = urllib.request.urlopen(request, timeout=self.timeout_s)
            except urllib.error.HTTPError as exc:
                answer = exc  # an answer like any other
            with answer:
                return HttpAnswer(int(answer.status), self._body(answer, until))
        except (OSError, http.client.HTTPException) as exc:
            reason = getattr(exc, "reason", exc)
            raise NoAnswer(f"{self.url}: {type(exc).__name__}: {reason}") from exc

    def _body(self, answer: Any, until: float) -> bytes:
        """The body, if it ends in time and is not too long; a socket's time limit is per read."""
        body = bytearray()
        while chunk := answer.read1(_CHUNK):
            body += chunk
            if len(body) > MAX_BYTES:
                raise NoAnswer(f"{self.url}: the answer is longer than {MAX_BYTES >> 20} MiB")
            if time.monotonic() > until:
                raise NoAnswer(f"{self.url}: the answer did not end within {self.timeout_s:g} s")
        return bytes(body)


def key_of(context: HookContext) -> str:
    """Return the idempotency key of a call: the same for repeated calls of one step."""
    parts = (context.push.push_id, context.method, context.region or "", context.push.status.value)
    return "/".join(parts if context.method.endswith("_end_of_push_job") else parts[:3])


def filled(template: str, context: HookContext) -> str:
    """Return the text with ``{region}``, ``{namespace}``, ``{table}``, ``{push_id}`` filled in."""
    values = {
        "region": context.region or "",
        "namespace": context.push.namespace,
        "table": context.push.table,
        "push_id": context.push.push_id,
    }
    for name, value in values.items():
        template = template.replace("{" + name + "}", value)
    return template


# ------------------------------------------------------------------------------------------- health


class _HealthHook(LifecycleHooks):
    """Checks the health of a region around its swap; ``prefix`` starts its keys."""

    asks_anew: ClassVar[bool] = True
    prefix: ClassVar[str]

    @abstractmethod
    def fault(self, context: HookContext) -> str | None:
        """Return what is wrong with the region; None if it is healthy."""

    def read(self) -> None:
        """Check the whole configuration, or raise ``ValueError``."""
        self.endpoint()
        self._on_fault("before", "wait", "abort")
        self._on_fault("after", "rollback", "abort")
        for key, default in (("watch", "5m"), ("pause", "1s")):
            duration(self.config, f"{self.prefix}.{key}", default)
        if self._tries() < 1:
            raise ValueError(f"{self.prefix}.tries: at least 1 is needed")

    def endpoint(self) -> HttpEndpoint:
        """Return the configured endpoint."""
        return HttpEndpoint.of(self.config, self.prefix)

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check the configuration."""
        return checked(self.read)

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Wait until the region is healthy."""
        fault = self._lasting_fault(context)
        if fault is None:
            return PROCEED
        return abort(fault) if self._on_fault("before", "wait", "abort") == "abort" else wait(fault)

    def post_version_swap(self, context: HookContext) -> Answer:
        """Watch the region for a while, and undo the push if it is unhealthy."""
        fault = self._lasting_fault(context)
        if fault is not None:
            back = self._on_fault("after", "rollback", "abort") == "rollback"
            return rollback(fault) if back else abort(fault)
        until = context.view().since + duration(self.config, f"{self.prefix}.watch", "5m")
        return PROCEED if context.now >= until else wait(f"watched until {until.isoformat()}")

    def _on_fault(self, key: str, default: str, other: str) -> str:
        return choice(self.config, f"{self.prefix}.{key}", default, other)

    def _tries(self) -> int:
        return int(number(self.config, f"{self.prefix}.tries", 3) or 0)

    def _lasting_fault(self, context: HookContext) -> str | None:
        pause_s = duration(self.config, f"{self.prefix}.pause", "1s").total_seconds()
        fault: str | None = None
        for attempt in range(self._tries()):
            if attempt:
                time.sleep(pause_s)
            fault = self.fault(context)
            if fault is None:
                return None
        return fault


def _health_keys(prefix: str, url: str) -> dict[str, str]:
    return {
        f"{prefix}.url": url,
        f"{prefix}.watch": "how long a region is watched after its swap (5m)",
        f"{prefix}.before": "answer to a fault before the swap: wait or abort (wait)",
        f"{prefix}.after": "answer to a fault after the swap: rollback or abort (rollback)",
        f"{prefix}.tries": "number of failures in a row that count as a fault (3)",
        f"{prefix}.pause": "pause between two tries (1s)",
        f"{prefix}.timeout": "time limit of one try (5s)",
    }


class HealthCheck(_HealthHook):
    """Healthy if a GET of ``health.url`` is answered with a status of 200 to 299."""

    prefix: ClassVar[str] = "health"
    enabled_by: ClassVar[str | None] = "health.url"
    options: ClassVar[Mapping[str, str] | None] = _health_keys(
        "health", "URL to request; {region}, {namespace}, {table}, {push_id} are filled in"
    )

    def fault(self, context: HookContext) -> str | None:
        """Return the failed answer."""
        endpoint = self.endpoint()
        url = filled(endpoint.url, context)
        try:
            answer = endpoint.at(url).get()
        except NoAnswer as exc:
            return str(exc)
        return None if answer.good else f"{url} answered {answer.status}"


class PrometheusCheck(_HealthHook):
    """Healthy if a query has exactly one value, within the limits."""

    prefix: ClassVar[str] = "prometheus"
    enabled_by: ClassVar[str | None] = "prometheus.url"
    options: ClassVar[Mapping[str, str] | None] = {
        **_health_keys("prometheus", "server, e.g. http://prometheus:9090"),
        "prometheus.query": "query; {region}, {namespace}, {table}, {push_id} are filled in",
        "prometheus.min": "smallest healthy value",
        "prometheus.max": "largest healthy value",
    }

    def read(self) -> None:
        """Check the query and its limits as well."""
        super().read()
        required(self.config, "prometheus.query")
        low, high = self._limits()
        if low is None and high is None:
            raise ValueError("neither prometheus.min nor prometheus.max is set")
        if low is not None and high is not None and low > high:
            raise ValueError(f"prometheus.min: {low:g} is above prometheus.max, {high:g}")

    def _limits(self) -> tuple[float | None, float | None]:
        return number(self.config, "prometheus.min"), number(self.config, "prometheus.max")

    def fault(self, context: HookContext) -> str | None:
        """Return why the value is unknown or outside the limits."""
        query = filled(self.config["prometheus.query"], context)
        endpoint = self.endpoint()
        server = endpoint.at(f"{endpoint.url.rstrip('/')}/api/v1/query")
        try:
            answer = server.with_query(query=query).get()
            if not answer.good:
                return f"{query}: the server answered {answer.status}"
            value = _one_value(answer.body)
        except (NoAnswer, ValueError) as exc:
            return f"{query}: {exc}"
        low, high = self._limits()
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


class _QueryAnswer(msgspec.Struct):
    status: str
    data: _Data


def _one_value(body: bytes) -> float:
    try:
        data = msgspec.json.decode(body, type=_QueryAnswer).data
        if data.resultType == "scalar":
            return float(msgspec.json.decode(data.result, type=tuple[float, str])[1])
        series = msgspec.json.decode(data.result, type=list[_Series])
    except msgspec.DecodeError as exc:
        raise ValueError(f"the answer is not the result of a query ({exc})") from exc
    if len(series) != 1:
        raise ValueError(f"the result has {len(series) or 'no'} values instead of one")
    return float(series[0].value[1])


# ------------------------------------------------------------------------------ webhook and remote


class Webhook(LifecycleHooks):
    """Posts every completed step to ``webhook.url``; never stops a push."""

    enabled_by: ClassVar[str | None] = "webhook.url"
    options: ClassVar[Mapping[str, str] | None] = {
        "webhook.url": "URL that events are posted to",
        "webhook.timeout": "time limit of a post (5s)",
    }

    def _endpoint(self) -> HttpEndpoint:
        return HttpEndpoint.of(self.config, "webhook")

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check the URL."""
        return checked(self._endpoint)

    def _post(self, context: HookContext) -> None:
        endpoint = self._endpoint()
        answer = endpoint.post({"event": context.method, "context": context.to_json()}, context)
        if not answer.good:
            raise NoAnswer(f"{endpoint.url} answered {answer.status}")

    def post_version_swap(self, context: HookContext) -> Answer:
        """Post the event, and proceed."""
        self._post(context)
        return PROCEED

    post_start_of_push_job = _post
    post_schema_registration = _post
    post_version_creation = _post
    post_version_leader_replication = _post
    post_end_of_push_job = _post


REMOTE_METHODS = (
    "pre_start_of_push_job",
    "pre_version_creation",
    "pre_version_swap",
    "post_version_swap",
    "pre_end_of_push_job",
)


NO_ANSWER = (401, 403, 407, 408, 425, 429)
"""Statuses that say nothing about the push: wrong credentials, or later. So do those from 500."""


class _RemoteAnswer(msgspec.Struct):
    answer: str
    reason: Any = None
    """A text; other values are shown as they are."""


_remote_answer = msgspec.json.Decoder(_RemoteAnswer)


class Remote(LifecycleHooks):
    """Lets ``remote.url`` decide, in the methods of ``remote.methods``.

    The hook waits while the server does not answer, has an error of its own (5xx), refuses the
    credentials or asks for patience; ``remote.away = "fail"`` makes that a failed call. Anything
    else that is no decision is a failed call, but a wait after a swap: there a failed call would
    count as proceed.
    """

    enabled_by: ClassVar[str | None] = "remote.url"
    options: ClassVar[Mapping[str, str] | None] = {
        "remote.url": "URL of the deciding service",
        "remote.methods": "methods it decides in, separated by commas, of"
        f" {', '.join(REMOTE_METHODS)} (pre_version_swap)",
        "remote.timeout": "time limit of a request (5s)",
        "remote.away": "what an unreachable service means: wait or fail (wait)",
    }

    def _methods(self) -> list[str]:
        named = self.config.get("remote.methods", "pre_version_swap")
        methods = [name.strip() for name in named.split(",")]
        strays = [name for name in methods if name not in REMOTE_METHODS]
        if strays:
            raise ValueError(
                f"remote.methods: {strays[0]!r} is none of {', '.join(REMOTE_METHODS)}"
            )
        return methods

    def _read(self) -> None:
        HttpEndpoint.of(self.config, "remote")
        choice(self.config, "remote.away", "wait", "fail")
        self._methods()

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check the URL and the methods."""
        return checked(self._read)

    def _decide(self, context: HookContext) -> Answer:
        if context.method not in self._methods():
            return PROCEED
        try:
            answer = self._asked(context)
            if answer.status >= 500 or answer.status in NO_ANSWER:
                raise NoAnswer(f"{self.config['remote.url']} answered {answer.status}")
        except NoAnswer as exc:
            if self.config.get("remote.away") == "fail":
                raise
            return wait(str(exc))
        try:
            return _read_answer(answer)
        except ValueError as exc:
            if context.method != "post_version_swap":
                raise
            return wait(str(exc))

    pre_start_of_push_job = _decide
    pre_version_creation = _decide
    pre_version_swap = _decide
    post_version_swap = _decide
    pre_end_of_push_job = _decide

    def _asked(self, context: HookContext) -> HttpAnswer:
        endpoint = HttpEndpoint.of(self.config, "remote")
        if context.call > 1:
            question = endpoint.with_query(
                push_id=context.push.push_id, method=context.method, region=context.region or ""
            )
            answer = question.get()
            if answer.status != 404:
                return answer
        return endpoint.post({"context": context.to_json()}, context)


def _read_answer(answer: HttpAnswer) -> Answer:
    """Return the decision of a response.

    Raises:
        ValueError: it has none.
    """
    if not answer.good:
        raise ValueError(f"the remote hook answered {answer.status}: {answer.body[:200]!r}")
    try:
        said = decoded(_remote_answer, answer.body)
        decision = Decision(said.answer.strip().lower())
    except ValueError as exc:
        if answer.status == 202:
            return wait("the remote hook has not decided yet")
        raise ValueError(f"the remote hook said {answer.body[:200]!r}: {exc}") from exc
    return Answer(decision, readable(said.reason))
