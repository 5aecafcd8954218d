"""A fake OpenID Connect provider: its keys, and tokens signed with them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ISSUER, AUDIENCE = "https://login.example.org/", "ingester"


def public(key: Any, kid: str, algorithm: str) -> dict[str, Any]:
    """A public key as an entry of a JWKS."""
    kind = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return kind.to_jwk(key.public_key(), as_dict=True) | {"kid": kid, "alg": algorithm}


def signed(
    key: Any = RSA,
    algorithm: str = "RS256",
    headers: dict[str, Any] | None = None,
    **claims: object,
) -> str:
    """A valid token of the provider, with these headers and claims replaced."""
    now = int(time.time())
    whole: dict[str, object] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "exp": now + 600,
        "ingester": ["shop:read,write"],
    }
    whole |= claims
    kept = {name: value for name, value in whole.items() if value is not None}
    return jwt.encode(kept, key, algorithm, {"kid": "r1"} | (headers or {}))


def write_keys(path: Path, *keys: dict[str, Any]) -> None:
    """Write a JWKS file with these keys."""
    path.write_text(json.dumps({"keys": keys}))
