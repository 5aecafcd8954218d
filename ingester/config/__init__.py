"""The settings: what an operator can set, and where each value comes from.

    flags, environment, file ─▶ ``sources`` ─▶ ``settings`` (frozen structs, units resolved)
                                                   └ ``units``: ``64MiB``, ``5m``
    ``otel_variables``  OpenTelemetry's variables that override ``[tracing]``
    ``levels``          the acknowledgement level of a table and of a stream
    ``exposure``        the rule that exposed listeners need TLS and tokens
    ``addresses``       whether an address is a loopback address
    ``secret_values``   secrets given as ``env:NAME`` or ``file:/path``
    ``watched_files``   certificates, keys and tokens, which are reloaded when they change

No other room reads settings from the environment or a file. Settings never change at run time,
except quotas (SIGHUP). Start reading at ``settings``.

To add a setting:

1. Add a field to its section in ``settings``. Its type has the range, as in
   ``max_age: Annotated[float, _seconds(0.01, 30 * DAY_S)] = 300.0``, and the docstring below it is
   its documentation. File, environment, ``--set`` and ``ingester config`` need no further code.
2. Use it where its room is opened: ``opening.py`` of the room gets the ``Settings``, and passes the
   value to the part that needs it.
3. Run ``make docs``, which writes ``docs/settings.md``, and add a test of its effect to the room.
   ``tests/readme/test_generated`` checks the page; ``tests/config`` checks ranges and units.

If the setting refuses requests, for example ``query.max_filter_terms``, also:

4. Raise a class of ``ingester.errors`` with ``details=limit_facts(…)``: ``BadRequest`` if the
   request can never pass, ``LimitReached`` if it can pass later.
5. Such refusals are counted. Fields of ``[limits]`` need nothing for that. The name of any other
   setting must be added to ``LIMITS`` in ``ingester.observability.metrics``; without it, the count
   raises ``KeyError``, which the client gets instead of the refusal. ``make docs`` writes the
   number of limits to ``docs/metrics.md``; the text beside it is in
   ``tests/readme/metrics_page.py``.
6. Add a row to ``docs/limits.md``, and a refused request to
   ``tests/server/flight/test_request_limits.py``. The runbook has entries for alarms and warnings
   only, so a refusal needs none.
"""
