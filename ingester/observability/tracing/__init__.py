"""Traces: what becomes of one batch, one query, one flush, as spans of OpenTelemetry.

    the caller's span
      └ ``writes``     write      prepare ─ log ─ apply …………… persist (when it is in files)
                                            ┆ link          ┆ link
                       group commit ◀───────┘               ▼
      ``flushes``      flush      queue ─ order ─ put ─ linger ─ commit
      └ ``queries``    query      parse ─ snapshot ─ scan ─ send ─ scan ─ send …
      └ ``calls``      any other call; reads what the caller says of its span (``traceparent``)

    ``tracer``      who is traced, and how a span is made: all of the above go through it
    ``collector``   the provider and its exporter of OTLP, from settings and ``OTEL_*`` variables
    ``delivery``    the bounded queue of spans, and what is told when a receiver is away
    ``counts``      what became of the spans, for ``/metrics``

Law of this room: nobody waits for a span. Where nothing is traced there is no tracer, and parts
hold None; a batch that is not sampled costs one random number. A span is made when it is over,
from times that were noted on the way, and waits in a bounded queue for a thread that sends it.
OpenTelemetry is imported when it is set up, and not before: of this room only ``collector`` and
``counts`` may be imported where nothing is traced. Start reading at ``calls``.
"""
