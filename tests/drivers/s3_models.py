"""botocore's S3 models, loaded once per process: loading them is half the cost of a client."""

from __future__ import annotations

import functools

import botocore.session


def share_models() -> None:
    """Share one model loader between all sessions of this process; sessions only read from it."""
    if not hasattr(botocore.session.create_loader, "cache_info"):
        botocore.session.create_loader = functools.cache(botocore.session.create_loader)


def load_models() -> None:
    """Load what a client needs before this process forks."""
    share_models()
    nowhere = {"endpoint_url": "http://127.0.0.1:1", "region_name": "us-east-1"}
    keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
    botocore.session.get_session().create_client("s3", **nowhere, **keys)
