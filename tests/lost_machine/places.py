"""Where the daemons' store is.

    file    local files
    s3      a real S3 server at a distance of 20 to 80 ms; it refuses some requests with 503, and of
            some the answer is lost

Spark and the last reads use the same server without faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.reading import StoreAt
from tests.crash.store_proxy import StoreProxy
from tests.drivers.s3_server import S3Server
from tests.fencing.pairs import Place, store_url

DISTANCE_S = (0.02, 0.08)
BUCKET = "lost-machines"


@contextmanager
def place_named(name: str, folder: Path, seed: int) -> Iterator[tuple[Place, StoreAt]]:
    """A place for daemons, and its store without faults."""
    folder.mkdir(parents=True)
    if name == "file":
        url = store_url(folder)
        yield Place(folder, url), StoreAt(url, {})
        return
    assert name == "s3"
    with S3Server.start() as server:
        server.make_bucket(BUCKET)
        proxy = StoreProxy(server.url, seed, DISTANCE_S)
        proxy.suffer("far")
        try:
            url = f"s3://{BUCKET}/store"
            environment = server.environment | {"AWS_ENDPOINT_URL": proxy.url}
            options = server.storage_options | {"endpoint_url": proxy.url}
            yield Place(folder, url, environment, options), StoreAt(url, server.storage_options)
        finally:
            proxy.close()
