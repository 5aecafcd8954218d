"""What a store or a remote hook has as JSON, as a value of ours.

Law of this file: pure. Whatever bytes there are, they are either such a value or a ValueError: no
other error comes of what somebody else has put there.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """Return the value that the bytes are.

    Raises:
        ValueError: they are none.
    """
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc
