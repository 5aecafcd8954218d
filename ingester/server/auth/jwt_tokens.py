"""Tokens of an OpenID Connect provider (JWT), checked by the provider's published keys (JWKS).

    token ─▶ its header's ``kid`` ─▶ a key of the set ─▶ signature, ``iss``, ``aud``, ``exp``
                    └ unknown: the set is loaded again, at most once in ``RELOAD_AFTER_S``
          ─▶ the claim with the grants ─▶ a caller

A key says which algorithm it is for, the token does not: neither ``none`` nor a signature by a
shared secret is accepted. ``tests/server/auth/test_jwt_tokens.py`` tries both.

PyJWT's ``PyJWKClient`` fetches the set; when to fetch is decided here. Its own cache refuses known
keys once it has expired while the provider is unreachable, and its pause between fetches counts
only those that succeeded, so that tokens with made-up key ids would hold up everybody else.

Source: RFC 7515, 7517, 7519, 8725 (best current practices).
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from ingester.config.addresses import is_loopback
from ingester.config.settings import AuthSettings, ConfigError
from ingester.config.watched_files import read_regular
from ingester.errors import NotAuthenticated
from ingester.server.auth.rights import BadGrant, Caller, parse_grants

log = structlog.get_logger(__name__)

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
ALGORITHMS += ["EdDSA"]
LIMIT_S = 5.0
"""Longest wait for a load of the set."""
MAX_FILE_BYTES = 1 << 20
RELOAD_AFTER_S = 10.0
"""Shortest time between two loads for unknown key ids."""
MAX_AGE_S = 600.0
"""The set is loaded again after this time, so that a withdrawn key becomes unknown."""
LEEWAY_S = 10.0
MAX_KNOWN_TOKENS = 4096
"""The most tokens whose signature is not checked again with each call."""


class JwksUnreachable(Exception):
    """The set of keys cannot be loaded, or has no usable key; the message says why."""


class JwtTokens:
    """Knows JWTs by a provider's keys; a :class:`~ingester.server.auth.access.TokenSource`.

    Args:
        settings: ``jwks`` and the required claims of a token.
        changed: called when the keys have changed.

    Raises:
        ConfigError: PyJWT is not installed, or the set of keys cannot be loaded.
    """

    def __init__(self, settings: AuthSettings, changed: Callable[[], object]) -> None:
        self._settings = settings
        self._changed = changed
        self._lock = threading.Lock()
        self._set: dict[str, Any] = {}
        """The set as it was published: a key may be replaced under its id."""
        self._keys: dict[str, Any] = {}
        self._known: dict[bytes, Caller] = {}
        self._tried_at = 0.0
        self.failure: str | None = None
        """Why the last load failed."""
        self._jwt = _pyjwt()
        self._load = _loader(self._jwt, settings.jwks)
        try:
            self._reload()
        except JwksUnreachable as exc:
            raise ConfigError("auth.jwks", str(exc)) from exc

    def knows(self, token: str) -> bool:
        """Return whether a token has the three parts of a JWT."""
        return token.count(".") == 2

    def caller(self, token: str) -> Caller:
        """Return the caller of this token. May load the keys. Raises :class:`NotAuthenticated`."""
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        # The tokens known by these keys: a reload that changes the keys replaces both.
        known = self._known
        found = known.get(digest)
        if found is None or (found.expires is not None and found.expires <= time.time()):
            found = self._checked(token)
            if len(known) >= MAX_KNOWN_TOKENS:
                known.clear()
            known[digest] = found
        return found

    def refresh(self) -> bool:
        """Load the keys; return whether they have changed. Blocks for ``LIMIT_S`` at most.

        Raises:
            JwksUnreachable: they cannot be loaded; the previous keys stay in use.
        """
        with self._lock:
            return self._reload()

    def _checked(self, token: str) -> Caller:
        jwt, settings = self._jwt, self._settings
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise NotAuthenticated(
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
            raise NotAuthenticated(
                f"the token is not valid: {exc}: have its issuer give a new one"
            ) from exc

    def _key(self, kid: object) -> Any:
        if not isinstance(kid, str):
            raise NotAuthenticated("the token does not name its key ('kid')")
        if (key := self._keys.get(kid)) is not None:
            return key
        # Callers wait for a load that is under way, because it may contain their key.
        with self._lock:
            if kid not in self._keys and time.monotonic() - self._tried_at >= RELOAD_AFTER_S:
                try:
                    self._reload()
                except JwksUnreachable as exc:
                    log.warning("token keys not loaded", error=str(exc), runbook="tokens-not-read")
            if (key := self._keys.get(kid)) is None:
                raise NotAuthenticated(
                    "the token is by a key that the set of auth.jwks does not have"
                )
            return key

    def _reload(self) -> bool:
        """Load the set. Under the lock, or before anybody else knows this object."""
        self._tried_at = time.monotonic()
        try:
            found = self._load()
            keys = _usable_keys(self._jwt, found)
        except JwksUnreachable as exc:
            self.failure = str(exc)
            raise
        self.failure = None
        if found == self._set:
            return False
        self._set, self._keys, self._known = found, keys, {}
        self._changed()
        return True


def _pyjwt() -> Any:
    try:
        import jwt
    except ImportError as exc:
        raise ConfigError(
            "auth.jwks", "PyJWT is not installed: pip install '.[jwt]' in the folder of the sources"
        ) from exc
    return jwt


def _loader(jwt: Any, place: str) -> Callable[[], dict[str, Any]]:
    """Return what loads the set from a file or a URL. Raises :class:`ConfigError`."""
    parts = urllib.parse.urlsplit(place)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ConfigError("auth.jwks", f"{place!r}: keys that come by plain HTTP can be forged")
    if parts.scheme in ("http", "https"):
        client = jwt.PyJWKClient(place, cache_jwk_set=False, timeout=LIMIT_S)
        return _Fetches(place, client.fetch_data).load
    if parts.scheme not in ("", "file"):
        raise ConfigError("auth.jwks", f"{place!r} is neither a file nor an https:// URL")

    def read() -> dict[str, Any]:
        try:
            found = json.loads(read_regular(Path(parts.path), MAX_FILE_BYTES)[0])
        except (OSError, ValueError, RecursionError) as exc:
            raise JwksUnreachable(f"{place}: cannot be read ({exc})") from exc
        return found if isinstance(found, dict) else {}

    return read


class _Fetches:
    """Fetches the set in a thread, and waits for ``LIMIT_S`` at most. Not thread-safe.

    The client's own timeout is that of a single read. A fetch that takes longer is left behind, and
    no second one starts beside it.
    """

    def __init__(self, place: str, fetch: Callable[[], Any]) -> None:
        self._place = place
        self._fetch = fetch
        self._last: threading.Thread | None = None

    def load(self) -> dict[str, Any]:
        """Return the set. Raises :class:`JwksUnreachable`."""
        found: list[Any] = []

        def run() -> None:
            try:
                found.append(self._fetch())
            except Exception as exc:
                found.append(exc)

        if self._last is not None and self._last.is_alive():
            raise JwksUnreachable(f"{self._place}: the previous load has not ended")
        self._last = threading.Thread(target=run, name="jwks", daemon=True)
        self._last.start()
        self._last.join(LIMIT_S)
        if not found:
            raise JwksUnreachable(f"{self._place}: did not answer completely in {LIMIT_S:g} s")
        if isinstance(found[0], Exception):
            raise JwksUnreachable(f"{self._place}: cannot be loaded ({found[0]})") from found[0]
        loaded: dict[str, Any] = found[0]
        return loaded


def _usable_keys(jwt: Any, said: dict[str, Any]) -> dict[str, Any]:
    """Return by id the keys of a set that sign by one of ``ALGORITHMS``."""
    try:
        found = jwt.PyJWKSet.from_dict(said).keys
    except (jwt.PyJWTError, ValueError, AttributeError, TypeError, RecursionError) as exc:
        raise JwksUnreachable(f"it is not a set of keys (JWKS): {exc}") from exc
    keys = {
        key.key_id: key
        for key in found
        if isinstance(key.key_id, str)
        and key.key_id
        and key.algorithm_name in ALGORITHMS
        and key.public_key_use in (None, "sig")
    }
    if not keys:
        raise JwksUnreachable(f"it has no key with a 'kid' for one of {', '.join(ALGORITHMS)}")
    return keys


def _caller(claims: dict[str, Any], claim: str) -> Caller:
    said = claims.get(claim, ())
    texts = said.split() if isinstance(said, str) else said
    if not isinstance(texts, list | tuple) or not all(isinstance(each, str) for each in texts):
        raise NotAuthenticated(f"the token's claim {claim!r} is not a list of grants")
    try:
        grants = parse_grants(texts)
    except BadGrant as exc:
        raise NotAuthenticated(f"the token's claim {claim!r}: {exc}") from exc
    name = "".join(c if c.isprintable() else "?" for c in str(claims["sub"]))[:128]
    return Caller(name, str(claims.get("jti", "jwt"))[:64], grants, float(claims["exp"]) + LEEWAY_S)
