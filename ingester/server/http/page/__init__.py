"""The operator's page: one HTML file, assembled from these files when the daemon starts.

    ``index.html``   the sections of the page, in reading order
    ``style.css``    light and dark, wide and 390 px
    ``numbers.js``   numbers with units, times, escaped text
    ``elements.js``  elements, tables, lists; updates that keep focus and selection
    ``plots.js``     plots of the last minutes, with a text alternative
    ``head.js``      state, alarms, rates, memory, store
    ``tables.js``    tables: search, pages, one table with its partitions and files
    ``work.js``      flushes, log, streams, origins, followers, namespaces, identity, errors
    ``pushes.js``    pushes
    ``replications.js``  replications
    ``refresh.js``   polls the daemon, shows the answer; pause, token, keyboard shortcuts

``assembling`` joins them and makes the Content-Security-Policy that allows exactly these scripts.

Each script is a module that imports what it needs from earlier ones; joined they share one scope,
so names are unique. Nothing is loaded from another host. Names from the daemon are inserted as
text, never as markup. Start reading at ``refresh.js``.
"""
