"""What an operator may turn, and where each value came from.

    flags, environment, file ─▶ ``sources`` ─▶ ``settings`` (frozen structs, units resolved)
                                                   └ ``units``: ``64MiB``, ``5m``
    ``otel_variables``  which of OpenTelemetry's variables win over ``[tracing]``
    ``exposure``        which listeners other machines reach, without TLS and tokens
    ``addresses``       whether an address is this machine's alone
    ``secret_values``   secrets that stand in a variable or a file of their own
    ``watched_files``   certificates, keys and tokens, which others replace while we run

A setting's type says its range and how it is written. Nothing else looks for settings in the
environment or the file, and none changes at run time. Start reading at ``settings``.
"""
