"""Traces: what happens to one batch, one query, one flush, as OpenTelemetry spans.

    the caller's span (``traceparent``)
      └ ``writes``    write      prepare ─ log ─ apply …………… persist (when its rows are in files)
                                           ┆ link          ┆ link
                      group commit ◀───────┘               ▼
                      flush      queue ─ order ─ put ─ linger ─ commit
      └ ``calls``     query      parse ─ snapshot ─ scan ─ send ─ scan ─ send …
                      sync, copy, action: one span each

    ``tracer``      makes spans; all of the above go through it
    ``collector``   decides whether to trace, from settings and ``OTEL_*`` variables
    ``provider``    the SDK's provider, sampler, batch processor and OTLP exporter

Sampling, queueing and sending are the SDK's. A part never waits for a span: each span is made once
its times are known and goes into the SDK's bounded queue. OpenTelemetry is imported only when
something is traced (``tests/observability/tracing``), so a module outside this room may import
``collector`` alone, except for type checking. Start reading at ``calls``.
"""
