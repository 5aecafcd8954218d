"""A Glue server (moto) in this process: an Iceberg catalogue that pyiceberg's classes reach.

with glue_server() as url:
    catalog = load_catalog("x", **glue_options(url))
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import make_server


@contextmanager
def glue_server(port: int = 0) -> Iterator[str]:
    """Run a server on loopback and yield its URL. Servers of a process share their content."""
    server = make_server("127.0.0.1", port, create_backend_app("glue"), threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def glue_options(url: str) -> dict[str, str]:
    """The options with which pyiceberg reaches the server."""
    return {
        "type": "glue",
        "glue.endpoint": url,
        "client.region": "us-east-1",
        "client.access-key-id": "test-access-key",
        "client.secret-access-key": "test-secret-key",
    }
