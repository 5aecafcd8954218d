"""What botocore knows of S3, read once in a process instead of by every client: half a client."""

from __future__ import annotations

import functools

import botocore.session


def share_models() -> None:
    """Let all sessions of this process have one loader; they only read what it has loaded."""
    if not hasattr(botocore.session.create_loader, "cache_info"):
        botocore.session.create_loader = functools.cache(botocore.session.create_loader)


def load_models() -> None:
    """Load what a client needs, for processes that are forked from this one."""
    share_models()
    nowhere = {"endpoint_url": "http://127.0.0.1:1", "region_name": "us-east-1"}
    keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
    botocore.session.get_session().create_client("s3", **nowhere, **keys)
