"""From one version of a table to another, and back.

    switch_version(store, …, version)     make a version count, under writes
    roll_back(store, …)                   make the one count again that did so before
    finish_switch(store, …)               do what is left of a switch that somebody has begun
    load_current(store, …)                the newest state of the version that counts
    version_at(manifest, moment)          from where on rows go along that came since a moment
    counts_since(store, …)                not before that do rows go along
    forbid_switch(store, …, version)      from now on no switch goes there
    held_bytes()                          rows that keyed switches hold in memory
    clean_up_versions(store, …)           delete those that will not count again

``switch`` has the three steps, of which anyone may do the rest: ``sealing`` is the first, where a
switch can be refused, ``import_commit`` the second. ``move`` is one switch under way, ``importing``
what the version that is left knows of its writers and what was streamed into it. ``along`` makes
what goes along of that, most of it before the seal: ``carrying`` copies files; of a keyed table
``key_changes`` says which rows changed, and ``keyed`` makes the files anew that have their keys.

``forbidding`` keeps a version from being switched to, and ``version_gc`` deletes those that will
not count again.

Which versions there are, and which counts, is in ``persist.manifest``. All of it blocks, and knows
neither the log nor the daemon. Start reading at ``switch``.
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
