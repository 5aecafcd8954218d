"""Switches a table to another version, and back, while rows are written.

    switch_version(store, …, version)     make a version current
    roll_back(store, …)                   make the previous current version current again
    finish_switch(store, …)               complete a switch that another process began
    load_current(store, …)                the newest state of the current version
    version_at(manifest, moment)          the manifest version after which rows are carried over
    counts_since(store, …)                the earliest such version
    forbid_switch(store, …, version)      prevent any later switch to a version
    held_bytes()                          rows that keyed switches hold in memory
    clean_up_versions(store, …)           delete versions that can never be current again

`switch` has the three steps, each of which any process can complete. `sealing` is the first step,
the only one that can refuse a switch, and decides what the new version takes over. `carrying` makes
the files of rows that were streamed into the old version, most of them before the seal: copies, or
for a keyed table the net changes by key, which `keyed` applies to the new version's files.

`version_gc` prevents switches to a version, and deletes versions.

`persist.manifest` lists the versions and says which is current. All calls block, and know neither
the log nor the daemon. Start reading at `switch`.
"""

from persist.switching.keyed import held_bytes as held_bytes
from persist.switching.sealing import counts_since as counts_since
from persist.switching.sealing import version_at as version_at
from persist.switching.switch import finish_switch as finish_switch
from persist.switching.switch import load_current as load_current
from persist.switching.switch import roll_back as roll_back
from persist.switching.switch import rollback_target as rollback_target
from persist.switching.switch import switch_version as switch_version
from persist.switching.version_gc import VersionRetention as VersionRetention
from persist.switching.version_gc import VersionsCleaned as VersionsCleaned
from persist.switching.version_gc import clean_up_versions as clean_up_versions
from persist.switching.version_gc import forbid_switch as forbid_switch
