"""What an operator may turn, and where each value came from.

    flags, environment, file ─▶ ``sources`` ─▶ ``settings`` (frozen structs, units resolved)
                                                   └ ``units``: ``64MiB``, ``5m``

A setting's type says its range and how it is written. Nothing else looks for settings in the
environment or the file, and none changes at run time. Start reading at ``settings``.
"""
