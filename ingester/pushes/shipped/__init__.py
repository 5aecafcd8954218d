"""Hooks that are there: to be named in ``hooks.classes``, and to be read as examples.

    ``minimum_delay``     so much time passes between two regions
    ``time_window``       regions swap in a window of time alone
    ``health_check``      a URL, or a Prometheus query, before a swap and for a while after it
    ``statistics_check``  rows, nulls and bytes of the new version against the current one
    ``webhook``           a URL is told what has happened
    ``remote``            another process decides, over HTTP

Each says in ``options`` which keys it knows; ``options`` the module reads their values, and
``http_calls`` is HTTP as they use it. Start reading at ``minimum_delay``.
"""
