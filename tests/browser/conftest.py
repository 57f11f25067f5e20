"""A real Chromium on a site that is read from a folder. Installed by apt where it is missing."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, Route, expect, sync_playwright

from images.commands.site import write
from images.config.paths import RESOURCES as ROOT
from images.errors import UserError
from images.host import apt
from images.nightly import results
from images.site import pages, runs
from images.site.pages import SiteInputs
from tests.support import site_samples as samples
from tests.support.sources import SOURCES

_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
).split()
_PROGRAMS = ("chromium-headless-shell", "chromium")
"""The first has the same engine and no windows, which take most of the processor time of the second."""
_PATIENCE = 120_000
"""Milliseconds: builds may run beside."""
expect.set_options(timeout=_PATIENCE)


def _chromium() -> str:
    refused = []
    for package in _PROGRAMS:  # Debian calls each as its program
        if found := next(filter(None, map(shutil.which, _PROGRAMS)), None):
            return found
        try:
            apt.install(package)
        except (UserError, OSError) as error:
            refused.append(str(error))
    return next(filter(None, map(shutil.which, _PROGRAMS)), None) or pytest.skip(f"no Chromium to be had: {refused}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests, with a user folder of its own that is new and empty."""
    path = _chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites: of samples in every state, and of what this repository records."""
    out = tmp_path_factory.mktemp("site")
    recorded = SiteInputs(
        sources=SOURCES,
        today=samples.TODAY,
        runs=runs.recorded(ROOT / "results"),
        nightly=results.read(ROOT / "results" / "nightly"),
    )
    (out / "frames.html").write_text("<!doctype html>")  # the site's own pages allow no frames
    write(pages.files(samples.known()), out / "samples")
    write(pages.files(recorded), out / "recorded")
    return out


@pytest.fixture(scope="session")
def origin() -> str:
    return "http://127.0.0.1"


def serve(context: BrowserContext, origin: str, folder: Path) -> None:
    """Answer for the origin from the folder. No network: Chromium ends requests when an engine adds an interface."""

    def answer(route: Route) -> None:
        file = folder / urlsplit(route.request.url).path.lstrip("/")
        if file.is_file():
            route.fulfill(path=file)
        else:
            route.fulfill(status=404)

    context.route(f"{origin}/**", answer)


@dataclass
class Heard:
    """What a page said and asked for."""

    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def listen(self, context: BrowserContext) -> None:
        context.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("requestfailed", self._failed)
        context.on(
            "response", lambda answer: answer.status < 400 or self.complaints.append(f"{answer.status}: {answer.url}")
        )

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # somebody went on before it was there
            self.complaints.append(f"{request.failure}: {request.url}")


@pytest.fixture
def heard(origin: str) -> Iterator[Heard]:
    """Every test of a page ends with this: nothing on the console, nothing asked of anybody else."""
    found = Heard()
    yield found
    assert found.complaints == []
    assert [url for url in found.requests if not url.startswith((origin, "file://"))] == []


@pytest.fixture
def context(browser: Browser, heard: Heard, origin: str, folder: Path) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 900})
    made.set_default_timeout(_PATIENCE)
    heard.listen(made)
    serve(made, origin, folder)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """A page on the day that the samples' site was made."""
    opened = context.new_page()
    opened.clock.set_fixed_time(f"{samples.TODAY}T12:00:00Z")
    return opened
