"""Tokens of an OpenID Connect provider (JWT), checked by the keys that it shows (JWKS).

    token ─▶ its header's ``kid`` ─▶ a key of the set ─▶ signature, ``iss``, ``aud``, ``exp``
                    └ not there: the set is loaded again, at most once in ``RELOAD_AFTER_S``
          ─▶ the claim with the grants ─▶ a caller

Law of this file: a key says which algorithm it is for, the token does not: no ``none``, and no
signature by a shared secret, which a public key could be taken for. A set that cannot be loaded
changes nothing; a token by an unknown key then stays unknown.

Source: RFC 7515, 7517, 7519, 8725 (best current practices).
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import structlog

from ingester.config.settings import AuthSettings, ConfigError
from ingester.errors import Unauthenticated
from ingester.server.auth.jwks import JwksAway, JwksPlace
from ingester.server.auth.rights import BadGrant, Caller, parse_grants

log = structlog.get_logger(__name__)

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
ALGORITHMS += ["EdDSA"]
RELOAD_AFTER_S = 10.0
"""An unknown key has the set loaded again not before so many seconds after the last time."""
MAX_AGE_S = 600.0
"""A set is loaded again after so many seconds: a key that is withdrawn is known no longer."""
LEEWAY_S = 10.0
KEPT = 4096
"""So many tokens are not checked anew with each call."""


class JwtTokens:
    """Knows JWTs by a provider's keys; a :class:`~ingester.server.auth.access.TokenSource`.

    Args:
        settings: ``jwks`` and what a token must say.
        changed: is told that keys are others now.

    Raises:
        ConfigError: PyJWT is not installed, or the set of keys cannot be loaded.
    """

    def __init__(self, settings: AuthSettings, changed: Callable[[], object]) -> None:
        self._settings = settings
        self._changed = changed
        self._lock = threading.Lock()
        self._keys: dict[str, Any] = {}
        self._marks: dict[str, str] = {}
        """The keys as the set has them, by their ids: a key may be replaced under its id."""
        self._known: dict[bytes, Caller] = {}
        self._tried_at = 0.0
        self.failure: str | None = None
        """Why the set could not be loaded the last time."""
        self._jwt = _pyjwt()
        self._place = JwksPlace(settings.jwks)
        try:
            self._load()
        except JwksAway as exc:
            raise ConfigError("auth.jwks", str(exc)) from exc

    def knows(self, token: str) -> bool:
        """Say whether a token has the three parts of a JWT."""
        return token.count(".") == 2

    def caller(self, token: str) -> Caller:
        """Return who shows this token. May load the keys. Raises :class:`Unauthenticated`."""
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        # Of these keys: what is checked by a key that goes meanwhile is kept with it, and gone.
        known = self._known
        found = known.get(digest)
        if found is None or (found.expires is not None and found.expires <= time.time()):
            found = self._checked(token)
            if len(known) >= KEPT:
                known.clear()
            known[digest] = found
        return found

    def refresh(self) -> bool:
        """Load the keys; say whether they are others now. Blocks.

        Raises:
            JwksAway: they cannot be loaded; those from before stay.
        """
        with self._lock:
            before = self._marks
            self._load()
        return before != self._marks

    def _checked(self, token: str) -> Caller:
        jwt, settings = self._jwt, self._settings
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise Unauthenticated(
                    "the token is signed by an algorithm that is not taken;"
                    f" {', '.join(ALGORITHMS)} are"
                )
            claims = jwt.decode(
                token,
                self._key(header.get("kid")),
                algorithms=ALGORITHMS,
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            return _caller(claims, settings.namespace_claim)
        except (jwt.PyJWTError, ArithmeticError, TypeError, ValueError, RecursionError) as exc:
            raise Unauthenticated(
                f"the token is not valid: {exc}: have its issuer give a new one"
            ) from exc

    def _key(self, kid: object) -> Any:
        if not isinstance(kid, str):
            raise Unauthenticated("the token does not name its key ('kid')")
        if (key := self._keys.get(kid)) is not None:
            return key
        # Whoever comes while the set is loaded waits: it may bring the key.
        with self._lock:
            if kid not in self._keys and time.monotonic() - self._tried_at >= RELOAD_AFTER_S:
                try:
                    self._load()
                except JwksAway as exc:
                    log.warning("token keys not loaded", error=str(exc), runbook="tokens-not-read")
            if (key := self._keys.get(kid)) is None:
                raise Unauthenticated(
                    "the token is by a key that the set of auth.jwks does not have"
                )
            return key

    def _load(self) -> None:
        """Load the set. Under the lock, or before anybody else knows this object."""
        self._tried_at = time.monotonic()
        try:
            keys, marks = _keys(self._jwt, self._place.load())
        except JwksAway as exc:
            self.failure = str(exc)
            raise
        stay = self._marks.items() <= marks.items()
        self._keys, self._marks, self.failure = keys, marks, None
        if not stay:
            self._known = {}
        self._changed()


def _pyjwt() -> Any:
    try:
        import jwt
    except ImportError as exc:
        raise ConfigError(
            "auth.jwks", "PyJWT is not installed: pip install 'ingester[jwt]'"
        ) from exc
    return jwt


def _keys(jwt: Any, data: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """The keys of a set that sign and can be checked without a secret, and what tells them apart.

    Both by their ids.
    """
    try:
        said = json.loads(data)
        found = jwt.PyJWKSet.from_dict(said).keys
    except (jwt.PyJWTError, ValueError, AttributeError, TypeError, RecursionError) as exc:
        raise JwksAway(f"it is not a set of keys (JWKS): {exc}") from exc
    keys = {
        key.key_id: key
        for key in found
        if isinstance(key.key_id, str)
        and key.key_id
        and key.algorithm_name in ALGORITHMS
        and key.public_key_use in (None, "sig")
    }
    if not keys:
        raise JwksAway(f"it has no key with a 'kid' for one of {', '.join(ALGORITHMS)}")
    return keys, _marks(said["keys"], keys)


def _marks(said: list[Any], ids: Collection[str]) -> dict[str, str]:
    """All that a set says under these ids: keys for other uses may have the same ones."""
    found: dict[str, list[Any]] = {kid: [] for kid in ids}
    for each in said:
        # Members of other kinds, and keys that are not used here, may be anything.
        if isinstance(each, dict) and isinstance(kid := each.get("kid"), str) and kid in found:
            found[kid].append(each)
    return {kid: json.dumps(each, sort_keys=True) for kid, each in found.items()}


def _caller(claims: dict[str, Any], claim: str) -> Caller:
    said = claims.get(claim, ())
    texts = said.split() if isinstance(said, str) else said
    if not isinstance(texts, list | tuple) or not all(isinstance(each, str) for each in texts):
        raise Unauthenticated(f"the token's claim {claim!r} is not a list of grants")
    try:
        grants = parse_grants(texts)
    except BadGrant as exc:
        raise Unauthenticated(f"the token's claim {claim!r}: {exc}") from exc
    name = "".join(c if c.isprintable() else "?" for c in str(claims["sub"]))[:128]
    return Caller(name, str(claims.get("jti", "jwt"))[:64], grants, float(claims["exp"]) + LEEWAY_S)
