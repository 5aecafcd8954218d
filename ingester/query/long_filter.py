"""A long filter as it came, read alternative by alternative.

Read at once, a filter of 100,000 alternatives would hold up every other thread for 40 ms, and take
twenty times its bytes.

Its terms are counted before any of it is made into a comparison, which takes ten times as long:
a filter that is too long is refused by then.

Law of this file: what is held is the JSON; nothing that was read of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import msgspec

from ingester.errors import InvalidRequest, limit_facts

_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read = msgspec.json.Decoder(list[list[Any]]).decode


class LongFilter(Sequence[list[list[Any]]]):
    """The alternatives of a filter.

    Args:
        raw: its JSON.
        terms: the most comparisons and values that are taken, ``query.max_filter_terms``.

    Raises:
        InvalidRequest: no list, or more alternatives than that.
    """

    def __init__(self, raw: msgspec.Raw, terms: int) -> None:
        try:
            self.alternatives = _split(raw)
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise InvalidRequest(f"ticket: filter: {exc}") from exc
        self._most = terms
        if len(self.alternatives) > terms:
            raise too_many_terms(len(self.alternatives), terms)

    def __len__(self) -> int:
        return len(self.alternatives)

    @overload
    def __getitem__(self, index: int) -> list[list[Any]]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[list[Any]]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [_alternative(raw) for raw in self.alternatives[index]]
        return _alternative(self.alternatives[index])

    def __iter__(self) -> Iterator[list[list[Any]]]:
        """Give the alternatives, one after another.

        Raises:
            InvalidRequest: one has not the form of one.
        """
        return map(_alternative, self.alternatives)

    def check(self, pause: Callable[[], None]) -> None:
        """Read all of it once, and see that it is no longer than it may be.

        Args:
            pause: is called between two alternatives.

        Raises:
            InvalidRequest: an alternative has not the form of one, or all have too many terms.
        """
        terms = 0
        for alternative in self:
            pause()
            terms += count_terms(alternative)
            if terms > self._most:
                raise too_many_terms(terms, self._most)


def count_terms(alternative: Sequence[Sequence[Any]]) -> int:
    """Return the number of an alternative's comparisons; each value of a list is one."""
    count = 0
    for term in alternative:
        is_list = len(term) == 3 and isinstance(term[2], list)
        count += max(1, len(term[2])) if is_list else 1
    return count


def too_many_terms(terms: int, most: int) -> InvalidRequest:
    """Return the error for a filter of so many comparisons and values, or more."""
    return InvalidRequest(
        f"filter: {terms} comparisons and values; at most {most} are taken"
        " (query.max_filter_terms): ask with fewer of them, and more often",
        details=limit_facts("query.max_filter_terms", most, terms),
    )


def _alternative(raw: msgspec.Raw) -> list[list[Any]]:
    try:
        return _read(raw)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise InvalidRequest(f"ticket: filter: {exc}") from exc
