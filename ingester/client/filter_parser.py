"""Filters as text: ``host = 'h1' and v > 3 or x in (1, 2) and y is not null``. Pure.

    either     := both { OR both }
    both       := negation { AND negation }
    negation   := [NOT] ( "(" either ")" | comparison )
    comparison := column ( operator value | [NOT] IN "(" value { "," value } ")"
                         | IS [NOT] NULL | [NOT] BETWEEN value AND value )
    operator   := = | == | != | <> | < | <= | > | >=
    column     := name | "quoted name" | `quoted name`
    value      := 'text' | number | true | false

The result is a disjunction of conjunctions, as in the protocol. NOT is pushed down to the
comparisons. As in SQL, a comparison with null is never true, and neither is its negation. NaN is
not null: ``f < 1`` is false for it, and ``not f < 1`` true.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain, product
from typing import Any, NamedTuple, TypeAlias

from .errors import InvalidRequest

Term: TypeAlias = tuple[str, str] | tuple[str, str, Any]
"""``(column, operator, value)``, or ``(column, "is null")``."""
Disjunction = list[list[Term]]


class LongNumber(Decimal):
    """A number with more digits than a float has. The daemon gets all of them."""


# (a or b) and (c or d) and … doubles with every pair. This is the daemon's default limit.
MAX_TERMS = 100_000
# The widest integer of a column has 38 digits, and the largest double 309.
MAX_DIGITS = 400
# Parentheses recurse; nobody writes deeper ones.
MAX_DEPTH = 100

_OPPOSITE = {
    "=": "!=",
    "!=": "=",
    "<": "not <",
    ">=": "not >=",
    ">": "not >",
    "<=": "not <=",
    "in": "not in",
    "not in": "in",
    "is null": "is not null",
    "is not null": "is null",
}
_KEYWORDS = {"and", "or", "not", "in", "is", "null", "between", "true", "false"}
_QUOTED_TIME = "; a date or time has single quotes: '2026-11-21'"
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
    | (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])
    | (?P<word>[^\W\d][\w.]*)
    | (?P<operator><=|>=|<>|!=|==|=|<|>)
    | (?P<mark>[(),])
    )""",
    re.VERBOSE,
)


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse_filter(text: str) -> Disjunction:
    """The filter in the form that ``Client.query`` takes.

    Raises:
        InvalidRequest: The text does not match the grammar (the message has the position), or it
            expands to more than 100,000 comparisons.
    """
    parser = _Parser(list(_tokens(text)))
    result = parser.either(negated=False, depth=0)
    parser.expect_end()
    return result


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            rest = text[at:].strip()
            reason = "is a quoted text without an end" if rest[0] in "'\"`" else "cannot be read"
            if re.match(r"[+-]?\d", rest):
                reason += _QUOTED_TIME
            raise InvalidRequest(f"filter, at {at}: {rest[:20]!r} {reason}")
        kind = match.lastgroup
        word = match[kind]
        if kind == "word" and word.lower() in _KEYWORDS:
            kind, word = "keyword", word.lower()
        yield _Token(kind, word, match.start(match.lastgroup))
        at = match.end()
    yield _Token("end", "the end", end)


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def either(self, *, negated: bool, depth: int) -> Disjunction:
        parts = [self._both(negated=negated, depth=depth)]
        while self._took("keyword", "or"):
            parts.append(self._both(negated=negated, depth=depth))
        return _all_of(parts) if negated else _any_of(parts)

    def _both(self, *, negated: bool, depth: int) -> Disjunction:
        parts = [self._negation(negated=negated, depth=depth)]
        while self._took("keyword", "and"):
            parts.append(self._negation(negated=negated, depth=depth))
        return _any_of(parts) if negated else _all_of(parts)

    def _negation(self, *, negated: bool, depth: int) -> Disjunction:
        while self._took("keyword", "not"):
            negated = not negated
        if self._took("mark", "("):
            if depth == MAX_DEPTH:
                raise self._unexpected(f"at most {MAX_DEPTH} parentheses")
            inner = self.either(negated=negated, depth=depth + 1)
            self._expect("mark", ")")
            return inner
        return self._comparison(negated)

    def _comparison(self, negated: bool) -> Disjunction:
        column = self._column()
        if self._token.kind == "operator":
            operator = {"==": "=", "<>": "!="}.get(self._token.text, self._token.text)
            self._next += 1
            return _one((column, operator, self._value()), negated)
        if self._took("keyword", "is"):
            operator = "is not null" if self._took("keyword", "not") else "is null"
            self._expect("keyword", "null")
            return _one((column, operator), negated)
        if self._took("keyword", "not"):
            negated = not negated
        if self._took("keyword", "in"):
            return _one((column, "in", self._values()), negated)
        if self._took("keyword", "between"):
            low = self._value()
            self._expect("keyword", "and")
            bounds = [(column, ">=", low), (column, "<=", self._value())]
            parts = [_one(bound, negated) for bound in bounds]
            return _any_of(parts) if negated else _all_of(parts)
        raise self._unexpected("a comparison: = != < <= > >= in, is null, between")

    def _column(self) -> str:
        token = self._token
        if token.kind == "word":
            self._next += 1
            return token.text
        if token.kind == "quoted":
            self._next += 1
            return token.text[1:-1].replace(token.text[0] * 2, token.text[0])
        raise self._unexpected("a column")

    def _values(self) -> list[Any]:
        self._expect("mark", "(")
        values = [self._value()]
        while self._took("mark", ","):
            values.append(self._value())
        self._expect("mark", ")")
        return values

    def _value(self) -> Any:
        token = self._token
        self._next += 1
        if token.kind == "text":
            return token.text[1:-1].replace("''", "'")
        if token.kind == "number":
            if len(token.text) > MAX_DIGITS:
                raise InvalidRequest(
                    f"filter, at {token.at}: a number of {len(token.text)} characters; the limit is"
                    f" {MAX_DIGITS}"
                )
            return _number(token)
        if token.kind == "keyword" and token.text in ("true", "false"):
            return token.text == "true"
        self._next -= 1
        if token.kind == "keyword" and token.text == "null":
            raise self._unexpected("a value (a comparison with null is never true: use 'is null')")
        hint = ""
        if token.kind in ("word", "quoted"):
            hint = f"; a text has single quotes: {_as_text(token.text)}"
        raise self._unexpected("a value: 'text', a number, true or false", hint)

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _took(self, kind: str, text: str) -> bool:
        if self._token[:2] != (kind, text):
            return False
        self._next += 1
        return True

    def _expect(self, kind: str, text: str) -> None:
        if not self._took(kind, text):
            raise self._unexpected(repr(text))

    def expect_end(self) -> None:
        if self._token.kind != "end":
            number = self._token.kind == self._tokens[self._next - 1].kind == "number"
            hint = _QUOTED_TIME if number else ""
            raise self._unexpected("'and', 'or' or the end", hint)

    def _unexpected(self, expected: str, hint: str = "") -> InvalidRequest:
        found = self._token
        return InvalidRequest(
            f"filter, at {found.at}: expected {expected}, found {found.text!r}{hint}"
        )


def _as_text(word: str) -> str:
    """A word or a quoted name as the text that it may have been meant to be."""
    inner = word[1:-1] if word[0] in '"`' else word
    return "'" + inner.replace("'", "''") + "'"


def _number(token: _Token) -> int | float | LongNumber:
    """An integer, the float that is printed like the text, or else all of its digits."""
    if token.text.lstrip("+-").isdigit():
        return int(token.text)
    number = LongNumber(token.text)
    if abs(number.adjusted()) > MAX_DIGITS:
        raise InvalidRequest(f"filter, at {token.at}: the number {token.text} is out of range")
    nearest = float(token.text)
    return nearest if Decimal(repr(nearest)) == number else number


def _one(term: Term, negated: bool) -> Disjunction:
    if negated:
        return [[(term[0], _OPPOSITE[term[1]], *term[2:])]]
    return [[term]]


def _any_of(parts: list[Disjunction]) -> Disjunction:
    _check_count(sum(map(_terms, parts)))
    return [conjunction for part in parts for conjunction in part]


def _all_of(parts: list[Disjunction]) -> Disjunction:
    count, conjunctions = 0, 1
    for part in parts:
        # Each conjunction so far is combined with each one of the part.
        count, conjunctions = (
            count * len(part) + conjunctions * _terms(part),
            conjunctions * len(part),
        )
        _check_count(count)
    return [list(chain.from_iterable(each)) for each in product(*parts)]


def _terms(part: Disjunction) -> int:
    return sum(map(len, part))


def _check_count(terms: int) -> None:
    if terms > MAX_TERMS:
        raise InvalidRequest(
            f"filter: more than {MAX_TERMS} comparisons when expanded to alternatives; list the"
            " values of a column: host in ('a', 'b')"
        )
