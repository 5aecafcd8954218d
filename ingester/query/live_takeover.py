"""Whether rows that a follower was told before a restart may have been left to another daemon.

An origin that goes on elsewhere takes rows along that are in buffers here: no file of ours has
them, though ``applied`` passes over them. A daemon that runs remembers that; after a restart the
manifest says whether it can have been so.

Law of this file: where that cannot be known, it may have been so.
"""

from __future__ import annotations

from persist.manifest import Manifest, Origin, VersionNotKept


def may_have_moved(manifest: Manifest, ingester_id: str, since: int, until: int) -> bool:
    """Whether an origin that was this daemon's at one version was another's by a later one.

    Reads the store: in a thread.

    Raises:
        StoreError: it cannot be read now.
    """
    try:
        origins = manifest.load(since).origins
        ours = {name for name, origin in origins.items() if origin.owner_id == ingester_id}
        for change in manifest.changes(since, until):
            for action in change.actions:
                if not isinstance(action, Origin):
                    continue
                if action.owner_id == ingester_id:
                    ours.add(action.name)
                elif action.name in ours:
                    return True
    except VersionNotKept:
        return True
    return False
