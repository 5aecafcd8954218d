"""The operator's page: one file for the browser, put together from these when the daemon starts.

    ``index.html``   the regions of the page, in the order in which they are read
    ``style.css``    light and dark, wide and 390 px
    ``numbers.js``   numbers with units, times, text that does not act
    ``elements.js``  elements, tables, lists
    ``plots.js``     the small plots of the last minutes, and their text
    ``head.js``      state, alarms, rates, memory: what stands on top
    ``tables.js``    tables: search, pages, one table with its partitions and files
    ``work.js``      persists, log, streams, origins, followers, namespaces, identity, errors
    ``pushes.js``    pushes
    ``replications.js``  replications
    ``refresh.js``   asks the daemon, shows the answer, pauses, takes a token, keys

``assembling`` puts them together, and makes the policy that allows them and nothing else.

Each script is a module that says what it takes from which other one; joined they share one scope,
so no two have a name in common. Nothing comes from another host; every name goes in as text, never
as markup; attributes with style or code do not run. Start reading at ``refresh.js``.
"""
