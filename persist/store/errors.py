"""The errors of a store, sorted by who has to act.

    StoreError
      NotFound            the caller: there is no such object
      AlreadyExists       the caller: the name is taken, its content is untouched
      StoreUnavailable    the caller, later: network, time-out, throttling, 5xx
        StoreFull         later, once there is room
      StoreDenied         an operator: credentials or permissions
      StoreUnsuitable     an operator: this store cannot do what a manifest needs

After ``StoreUnavailable`` from a write nobody knows whether it happened: read it back.
Messages carry the URL or path and the cause, never a credential.
"""

from __future__ import annotations


class StoreError(Exception):
    """A store refused or failed; this class itself is raised for a name it cannot hold."""


class NotFound(StoreError):
    """There is no object at ``path``."""

    def __init__(self, path: str) -> None:
        super().__init__(f"no object {path!r}")
        self.path = path


class AlreadyExists(StoreError):
    """A conditional create met an object at ``path`` and left it as it was."""

    def __init__(self, path: str) -> None:
        super().__init__(f"object {path!r} exists already")
        self.path = path


class StoreUnavailable(StoreError):
    """The store did not answer, or asked to be left alone for now: try again later."""


class StoreFull(StoreUnavailable):
    """The store has no room left: try again once there is some."""


class StoreDenied(StoreError):
    """The store does not let these credentials do this."""


class StoreUnsuitable(StoreError):
    """The store, as it is set up, cannot keep a manifest safe."""
