"""The rule of exposed listeners: beyond the loopback only with TLS and tokens, or ``insecure``."""

from __future__ import annotations

from .addresses import is_loopback
from .settings import ConfigError, Settings, split_address


def exposed_listeners(settings: Settings) -> list[str]:
    """Return the names of the listeners that other machines can reach. May look names up."""
    addresses = {"flight.listen": settings.flight.listen, "http.listen": settings.http.listen}
    return [name for name, at in addresses.items() if not is_loopback(split_address(at)[0])]


def is_insecure(settings: Settings) -> bool:
    """Return whether other machines reach a listener without TLS or tokens."""
    return bool(exposed_listeners(settings)) and bool(_lacking(settings))


def check_exposure(settings: Settings) -> None:
    """Refuse a listener beyond the loopback without TLS and tokens, unless ``insecure`` is set.

    Raises:
        ConfigError: it names the listener, what is missing, and the remedies.
    """
    if settings.insecure or not is_insecure(settings):
        return
    name = exposed_listeners(settings)[0]
    section, _, field = name.partition(".")
    address = getattr(getattr(settings, section), field)
    raise ConfigError(
        name,
        f"{address} can be reached from other machines, without {' and '.join(_lacking(settings))}:"
        " set that, listen on 127.0.0.1, or use --insecure (insecure = true) on a network"
        " that is isolated otherwise",
    )


def _lacking(settings: Settings) -> list[str]:
    missing = [] if settings.tls.cert else ["TLS (tls.cert, tls.key)"]
    return missing + ([] if settings.auth.enabled else ["tokens (auth.tokens)"])
