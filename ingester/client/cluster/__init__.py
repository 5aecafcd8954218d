"""One client of several daemons that write to the same store.

    Client(["grpc://a:8082", "grpc://b:8082"])    Client("a:8082,b:8082")
    Client("dns+grpc://ingester:8082")            all addresses of a name

``connection`` decides which daemons a call needs: one or all (``asking``); ``merging`` merges the
answers. ``members`` has the daemons with their connections; ``daemons`` has their addresses, order
of preference, health and stores.

A writer's streams go to the daemon that its table and origin prefer, or to the next one while that
is unreachable (``route``). A query asks all daemons for the rows that the files of one version lack
(``union``). A statement goes to one daemon, which reads the buffers of the others (``sql``).

The client keeps no state besides the daemons': two clients compute the same order, and the daemons'
own rules hold in any case (one owner of a keyed table, one daemon at a time for an origin). Start
reading at ``connection``. ``docs/many_daemons.md`` is for users.
"""

from .connection import ClusterConnection
from .daemons import names_several, sole

__all__ = ["ClusterConnection", "names_several", "sole"]
