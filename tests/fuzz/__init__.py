"""Bytes from outside, made wrong in every way that we can think of: ``make fuzz``.

Law of this folder: whatever bytes come in, the answer is a right result or a typed error of ours,
in bounded time and memory; never a crash, a hang or silence. Whatever runs foreign bytes runs in a
process of its own, which has a memory limit and notes each input before it tries it.

    mutations     wrong bytes from right ones
    targets       everything that decodes, by name: bytes in, nothing or an error of ours out
    child         one target in a process of its own, with hypothesis or with atheris
    raw_flight    gRPC frames by hand, because Arrow's client sends nothing that is wrong
    regressions/  inputs that were once answered wrongly
"""
