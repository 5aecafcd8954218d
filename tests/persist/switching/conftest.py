"""An empty store for each test, as in the tests of the manifest."""

from tests.persist.manifest.conftest import manifest_s3_server as manifest_s3_server
from tests.persist.manifest.conftest import real_store as real_store
