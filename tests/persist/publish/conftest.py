"""The stores of the manifest's tests."""

from tests.persist.manifest.conftest import manifest_s3_server as manifest_s3_server
from tests.persist.manifest.conftest import real_store as real_store
