"""The operator's page: one HTML file, assembled from these files when the daemon starts.

    ``index.html``   the sections of the page, in reading order
    ``style.css``    light and dark, wide and 390 px
    ``numbers.js``   numbers with units, times, escaped text
    ``elements.js``  elements, tables, lists; updates that keep focus and selection
    ``plots.js``     plots of the last minutes, with a text alternative
    ``head.js``      state, alarms, rates, memory, store
    ``tables.js``    tables: search, pages, one table with its partitions and files
    ``work.js``      flushes, log, streams, origins, followers, namespaces, identity, errors
    ``query.js``     SQL: a statement, and the first rows of its answer
    ``pushes.js``    pushes
    ``replications.js``  replications
    ``refresh.js``   polls the daemon, shows the answer; pause, token, keyboard shortcuts

:func:`assemble` joins them and makes a Content-Security-Policy that allows exactly this style and
script, by the hashes of the text that is sent.

Each script is a module that imports what it needs from earlier ones. They are joined without their
``import`` lines and the word ``export``, and share one scope, so names are unique. Nothing is
loaded from another host. Names from the daemon are inserted as text, never as markup. Start reading
at ``refresh.js``.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

SCRIPTS = (
    "numbers.js",
    "elements.js",
    "plots.js",
    "head.js",
    "tables.js",
    "query.js",
    "pushes.js",
    "replications.js",
    "work.js",
    "refresh.js",
)
_IMPORT = re.compile(r"^import \{[^}]*\} from \"\./(\w+\.js)\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=const |let |function |async function )", re.MULTILINE)


@cache
def assemble() -> tuple[bytes, str]:
    """Return the page (UTF-8 HTML) and its Content-Security-Policy.

    Raises:
        ValueError: a script imports from a later one or from elsewhere.
    """
    style, script = _read("style.css"), _script()
    page = _read("index.html").replace("/* style.css */", style).replace("/* scripts */", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)};"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    )
    return page.encode(), policy


def _script() -> str:
    joined = ""
    for position, name in enumerate(SCRIPTS):
        text = _read(name)
        for source in _IMPORT.findall(text):
            if source not in SCRIPTS[:position]:
                raise ValueError(f"{name} imports from {source}, which does not come before it")
        text = _EXPORT.sub("", _IMPORT.sub("", text))
        if re.search(r"^(import|export)\b", text, re.MULTILINE):
            raise ValueError(f"{name} has an unsupported import or export")
        joined += f"// ---- {name} ----\n{text}"
    return joined


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
