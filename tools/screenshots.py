"""Pictures of the site in docs/: `python -m tools.screenshots`. Needs Chromium (Debian's chromium-headless-shell).

The pages are those that `site` writes of this checkout. No test compares the pictures: fonts and the day change them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile

import typer
from playwright.sync_api import sync_playwright

from images.config.paths import RESOURCES
from images.errors import Problem, UserError
from tools import run

PAGES = {
    "site-matrix.png": ("index.html", 1800),
    "site-image.png": ("images/cu130-torch211.html", 900),
    "site-choose.png": ("choose.html?gpu=H100&driver=580.95.05", 900),
}
"""Picture -> page below the site's folder, and the height in pixels."""


def main() -> None:
    """Write the site to a scratch folder, and a picture of each page to docs/."""
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if not chromium:
        raise UserError(Problem(where="chromium", cause="is missing", then="`apt-get install chromium-headless-shell`"))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        subprocess.run([sys.executable, "-m", "images", "site", "--out", folder], cwd=RESOURCES, check=True)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture, (page, height) in PAGES.items():
            shown = browser.new_page(viewport={"width": 1200, "height": height})
            shown.goto(f"file://{folder}/{page}")
            shown.screenshot(path=RESOURCES / "docs" / picture)
            typer.echo(f"wrote docs/{picture}")
        browser.close()


if __name__ == "__main__":
    run(main)
