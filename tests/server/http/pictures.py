"""``make pictures``: screenshots of the operator's page for the documents.

    python -m tests.server.http.pictures [FOLDER]

The same page always gives the same pictures: the scenes come from a seed, and the page's clock
stands still. A picture has a palette and stays below ``MOST_BYTES``.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from tests.drivers.browser import FOUND, Browser
from tests.server.http.scenes import NOW, SCENES
from tests.server.http.serving import serving

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "pictures"
MOST_BYTES = 150_000
COLOURS = 96
_STANDING_CLOCK = f"""const Real = Date;
globalThis.Date = class extends Real {{
    constructor(...parts) {{ super(...(parts.length ? parts : [{NOW * 1000}])); }}
    static now() {{ return {NOW * 1000}; }}
}};"""


class Picture(NamedTuple):
    """A screenshot: scene, width, height, and whether in dark mode."""

    scene: str
    width: int = 1280
    height: int = 1000
    dark: bool = False


PICTURES = {
    "page.png": Picture("well"),
    "page_store_away.png": Picture("store_away"),
    "page_disk_full_dark.png": Picture("disk_full", dark=True),
    "page_1000_tables.png": Picture("many_tables"),
    "page_phone.png": Picture("store_away", 390, 1500),
    "page_phone_dark.png": Picture("well", 390, 1500, dark=True),
}


def draw(browser: Browser, picture: Picture) -> bytes:
    """Draw a picture; returns it as PNG."""
    with (
        serving(SCENES[picture.scene]()) as server,
        browser.tab(picture.width, picture.height, dark=picture.dark) as tab,
    ):
        tab.send("Page.addScriptToEvaluateOnNewDocument", source=_STANDING_CLOCK)
        tab.open(server.url)
        tab.until("document.documentElement.dataset.rounds > 0")
        image = Image.open(io.BytesIO(tab.picture()))
        output = io.BytesIO()
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(
            output, "PNG", optimize=True
        )
    return output.getvalue()


def main() -> None:
    """Draw all pictures into a folder."""
    if FOUND is None:
        sys.exit("pictures: needs chromium on the path (apt-get install chromium)")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    with Browser.start() as browser:
        for name, picture in PICTURES.items():
            data = draw(browser, picture)
            if len(data) > MOST_BYTES:
                sys.exit(f"pictures: {name} has {len(data):,} bytes, more than {MOST_BYTES:,}")
            (folder / name).write_bytes(data)
            print(f"{folder / name}: {len(data):,} bytes")


if __name__ == "__main__":
    main()
