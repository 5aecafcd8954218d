"""Which daemon a stream prefers: rendezvous hashing (highest random weight). Pure.

Every client that knows the same daemons ranks them alike, whatever the order in which it was told
of them. When one goes, only the keys that preferred it move, each to its second choice; when one
comes, only the keys that prefer it move there.
"""

import hashlib
from collections.abc import Iterable, Sequence


def ranked(key: Sequence[str], members: Iterable[str]) -> list[str]:
    """The members in the key's order of preference, the same for everybody.

    Args:
        key: what is placed, as ``("shop", "visits", "station-7")``.
        members: the daemons' endpoints; one that is named twice counts once.
    """
    # Each part ends with a zero byte, which no name has: ("a", "bc") is not ("ab", "c").
    whole = b"".join(part.encode("utf-8", "surrogatepass") + b"\0" for part in key)
    return sorted(set(members), key=lambda member: (_weight(whole, member), member), reverse=True)


def _weight(key: bytes, member: str) -> bytes:
    return hashlib.blake2b(key + member.encode(), digest_size=8).digest()
