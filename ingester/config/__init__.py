"""What an operator may turn, and where each value came from.

    flags, environment, file ─▶ ``sources`` ─▶ ``settings`` (frozen structs, units resolved)
                                    └ ``units``: ``64MiB``, ``5m``

It reads the environment and the file, and nothing else does. It never changes a setting at run
time. Start reading at ``settings``.
"""
