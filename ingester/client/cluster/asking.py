"""Calls at any one of several daemons, or at all of them.

    any_of   in the order of a key's preference, until one answers
    all_of   in parallel; an unreachable daemon causes an error, or is reported as missing

Calls are retried under the client's policy. Another daemon is tried before waiting for one that is
unreachable or refuses.
"""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

from ..connection import Connection
from ..errors import ClientError, InvalidRequest, TimedOut, Unreachable, is_unavailable
from ..retry import NEVER, RetryPolicy, RetryState, is_retryable
from ..wire import Missing
from .members import AT_ONCE, Members

T = TypeVar("T")


class Answers(NamedTuple, Generic[T]):
    """The answers by endpoint, and the endpoints of unreachable daemons."""

    by_endpoint: dict[str, T]
    missing: tuple[str, ...] = ()


class Asking:
    """Calls at the daemons of one client. Any thread."""

    def __init__(self, members: Members, retry: RetryPolicy) -> None:
        self._members = members
        self._retry = retry

    def any_of(
        self,
        key: Sequence[str],
        call: Callable[[Connection], T],
        *,
        once: bool = False,
        first: str | None = None,
        besides: Sequence[str] = (),
    ) -> T:
        """The answer of the first daemon that gives one, in the key's order of preference.

        Args:
            once: Ask each daemon once at most.
            first: The daemon to ask before all others.
            besides: Daemons known to be unreachable, which are not asked.

        Raises:
            ClientError: The last daemon's error; or two daemons write to different stores.
        """
        retry = RetryState(NEVER if once else self._retry, random.random)
        while True:
            error: ClientError | None = None
            for endpoint in self._members.order(key, first):
                if endpoint in besides:
                    continue
                try:
                    return self._asked(endpoint, call)
                except ClientError as exc:
                    if not is_retryable(exc):
                        raise
                    error = exc
            assert error is not None
            self._pause(retry, error)

    def all_of(
        self,
        call: Callable[[Connection], T],
        missing: Missing = "error",
        about: str = "",
        besides: Sequence[str] = (),
    ) -> Answers[T]:
        """The answers of all daemons.

        Args:
            missing: Whether unreachable daemons may be left out.
            about: What would be missing, for the error.
            besides: Daemons known to be unreachable, which are not asked and count as missing.

        Raises:
            Unreachable: A daemon is unreachable and ``missing`` is not "allow"; or all are.
            ClientError: A daemon's error; or two daemons write to different stores.
        """
        endpoints = [each for each in self._members.of_one_store() if each not in besides]
        with ThreadPoolExecutor(min(AT_ONCE, len(endpoints) or 1), "ingester-asking") as pool:
            asked = {
                endpoint: pool.submit(self._patiently, endpoint, call, missing)
                for endpoint in endpoints
            }
        failed: dict[str, ClientError] = {}
        answers: dict[str, T] = {}
        for endpoint, future in asked.items():
            error = future.exception()
            if error is None:
                answers[endpoint] = future.result()
            elif isinstance(error, ClientError):
                failed[endpoint] = error
            else:
                raise error
        for error in failed.values():
            if not is_unavailable(error):
                raise error
        if failed and (missing == "error" or not answers):
            raise _some_missing(failed, len(endpoints), about)
        return Answers(answers, (*besides, *failed))

    def _patiently(self, endpoint: str, call: Callable[[Connection], T], missing: Missing) -> T:
        retry = RetryState(self._retry, random.random)
        while True:
            try:
                return self._asked(endpoint, call)
            except ClientError as exc:
                if missing == "allow" and is_unavailable(exc):
                    raise
                self._pause(retry, exc)

    def _asked(self, endpoint: str, call: Callable[[Connection], T]) -> T:
        """One call at one daemon; its outcome updates the daemon's health."""
        try:
            answer = call(self._members.checked(endpoint))
        except InvalidRequest:
            raise  # possibly the client's own: closed, forked
        except ClientError as exc:
            if isinstance(exc, Unreachable | TimedOut):
                self._members.failed(endpoint, exc)
            raise
        return answer

    def _pause(self, retry: RetryState, error: ClientError) -> None:
        """Wait before the next try, or raise the error if there is none."""
        delay_s = retry.failed(error, time.monotonic())
        if delay_s is None:
            raise error
        time.sleep(delay_s)


def _some_missing(failed: dict[str, ClientError], count: int, about: str) -> ClientError:
    told = "; ".join(f"{endpoint}: {error}" for endpoint, error in failed.items())
    lacking = f"; {about}" if about and len(failed) < count else ""
    first = next(iter(failed.values()))
    error = Unreachable(
        f"{len(failed)} of {count} daemons are unreachable ({told}){lacking}",
        details={"missing": list(failed)},
    )
    error.__cause__ = first
    return error
