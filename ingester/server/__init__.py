"""The protocols: each decodes, hands over and translates what goes wrong.

``flight`` is Arrow Flight, ``http`` the probes, metrics and the page. ``portal`` is the one place
where threads of gRPC enter the event loop. No protocol has rules of its own.
"""
