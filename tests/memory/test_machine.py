"""The memory of this process as the system reports it."""

from __future__ import annotations

from ingester.memory.machine import resident_bytes, usable_bytes

MIB = 1 << 20


def test_resident_memory_grows_with_what_is_held() -> None:
    before = resident_bytes()
    held = bytearray(b"x" * (64 * MIB))
    assert 60 * MIB < resident_bytes() - before < usable_bytes()
    assert len(held) == 64 * MIB
