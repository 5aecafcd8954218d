"""Malformed bytes from outside, of every kind we could think of: ``make fuzz``.

For any bytes, the answer is a right result or a typed error of ours, in bounded time and memory;
never a crash, a hang or silence. Foreign bytes are processed in a separate process, which has a
memory limit and notes each input before it tries it.

    mutations     malformed bytes from valid ones
    targets       all decoders by name: bytes in, nothing or an error of ours out
    child         one target in its own process, with hypothesis or with atheris
    raw_flight    handmade gRPC frames, because Arrow's client sends only valid ones
    regressions/  inputs that once got a wrong answer
"""
