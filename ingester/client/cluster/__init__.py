"""One client of many daemons that write to the same store.

    Client(["grpc://a:8082", "grpc://b:8082"])    Client("a:8082,b:8082")
    Client("dns+grpc://ingester:8082")            all addresses that a name has

Writes: a writer's streams go to the daemon that its table and origin prefer (``placement``), and to
the next one of its order while that is away; ``route`` says when, ``aside`` looks after what was
acknowledged by the one before, ``members`` has the daemons with their connections, ``health`` what
is known of each, and ``stores`` whether all write to one store. ``addresses`` reads what a caller
has named.

Queries: ``union`` asks all daemons for what the files of one version lack, and ``union_stream``
puts the answers together. Everything else is asked at one or at all (``asking``), as
``connection`` says by the kind of call; ``merging`` makes one answer of all.

It keeps no state beside the daemons': two clients agree on a daemon as they compute the same order,
and where they do not, the daemons' own rules hold (one owner of a keyed table, one daemon at a time
for an origin). Start reading at ``connection``. ``docs/many_daemons.md`` has it for users.
"""

from .addresses import names_several, sole
from .connection import ClusterConnection

__all__ = ["ClusterConnection", "names_several", "sole"]
