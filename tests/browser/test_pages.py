"""Pages in a real browser: quiet, alone, readable by everybody, and old when they are old."""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import serve
from tests.support import site_samples as samples
from tests.support.site_samples import NEVER, PARTLY, REBUILT, VALIDATED

PAGES = [
    "index.html",
    "choose.html?gpu=RTX+4090&driver=550.90",
    "choose.html?gpu=nonsense",
    "combinations.html",
    "nightly.html",
    "errors.html",
    f"images/{PARTLY}.html",
    f"images/{VALIDATED}.html",
    f"images/{NEVER}.html",
    f"images/{REBUILT}.html",
    f"runs/{PARTLY}/static-cpu-2026-11-21.html",
]
MAIN_COLOURS = "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor].join()"


_EACH = """async urls => {
    const found = [];
    for (const url of urls) {
        const frame = document.body.appendChild(document.createElement("iframe"));
        [frame.width, frame.height] = [innerWidth, innerHeight];
        await new Promise(loaded => { frame.onload = loaded; frame.src = url; });
        found.push([frame.contentDocument.title, frame.contentDocument.querySelectorAll("h1").length]);
        frame.remove();
    }
    return found;
}"""
"""Load each page in a frame: a navigation takes as long again as most of them."""


def row(page: Page, name: str) -> str:
    return f'#images tr[data-words^="{name} "]'


@pytest.mark.parametrize("site", ["samples", "recorded"])
def test_every_page_loads_without_a_word_and_asks_nobody_else(page: Page, origin: str, folder: Path, site: str) -> None:
    paths = sorted(path.relative_to(folder / site) for path in (folder / site).rglob("*.html"))
    assert len(paths) > 40
    page.goto(f"{origin}/frames.html")
    found = page.evaluate(_EACH, [f"{origin}/{site}/{path}" for path in paths])
    assert [path for path, (title, headings) in zip(paths, found, strict=True) if not title or headings != 1] == []


def test_a_page_works_from_a_folder_as_from_a_server(page: Page, folder: Path) -> None:
    page.goto(f"file://{folder}/samples/index.html")
    page.get_by_role("combobox", name="GPU", exact=True).fill("H100")
    page.get_by_role("button", name="Which image?").click()
    expect(page.locator("#answer h2")).to_contain_text("Take ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing(page: Page, origin: str, path: str, scheme: str) -> None:
    """Landmarks, headings, names, table headers, contrast: axe-core's rules for WCAG 2.2 AA and its best practices."""
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(f"{origin}/samples/{path}")
    for details in page.locator("details").all():
        details.evaluate("it => { it.open = true; }")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert len(found.response["passes"]) > 15, "axe looked at the page"


@pytest.mark.parametrize("path", PAGES)
def test_a_phone_shows_every_page_without_scrolling_sideways(page: Page, origin: str, path: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{origin}/samples/{path}")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_verdict_becomes_stale_by_itself(page: Page, origin: str) -> None:
    def at(day: str) -> str:
        page.clock.set_fixed_time(f"{day}T12:00:00Z")
        page.goto(f"{origin}/samples/index.html")
        return page.locator(f"{row(page, VALIDATED)} td.cell").first.inner_text()

    assert "today" in at("2026-11-21")
    green = page.locator(f"{row(page, VALIDATED)} td.cell").first.evaluate("it => getComputedStyle(it).backgroundColor")
    assert "14 d" in at("2026-12-05") and not page.locator(f"{row(page, VALIDATED)} .stale").count()
    assert page.locator("[data-total=validated]").inner_text() == "1"
    assert page.locator("[data-total=stale]").inner_text() == "2"
    assert "stale, 15 d" in at("2026-12-06")
    assert page.locator("[data-total=validated]").inner_text() == "0"
    assert page.locator(f"{row(page, VALIDATED)} .word").inner_text() == "stale"
    cell = page.locator(f"{row(page, VALIDATED)} td.cell").first
    assert cell.evaluate("it => getComputedStyle(it).backgroundColor") != green


def test_without_javascript_there_are_dates_and_a_way_to_choose(browser: Browser, origin: str, folder: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    serve(context, origin, folder)
    page = context.new_page()
    page.goto(f"{origin}/samples/index.html")
    assert "2026-11-21" in page.locator(f"{row(page, VALIDATED)} td.cell").first.inner_text()
    assert not page.locator("#theme").is_visible() and not page.locator(".tools").is_visible()
    page.goto(f"{origin}/samples/choose.html")
    assert "nox -s choose -- --gpu" in page.content().partition("<noscript>")[2]
    context.close()


def test_the_theme_follows_the_system_until_one_is_chosen(page: Page, origin: str) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(f"{origin}/samples/index.html")
    dark = page.evaluate(MAIN_COLOURS)
    button = page.locator("#theme")
    button.click()
    expect(button).to_have_text("Theme: light")
    light = page.evaluate(MAIN_COLOURS)
    assert light != dark
    page.goto(f"{origin}/samples/nightly.html")
    assert page.evaluate(MAIN_COLOURS) == light, "kept on the next page"
    button.click()
    button.click()
    expect(button).to_have_text("Theme: system")
    assert page.evaluate(MAIN_COLOURS) == dark


def test_the_keyboard_reaches_everything(page: Page, origin: str) -> None:
    page.goto(f"{origin}/samples/index.html")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    box = skip.bounding_box()
    assert box and box["x"] >= 0, "seen where it has the focus"
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("combobox", name="GPU", exact=True)).to_be_focused()
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        assert page.evaluate(outline) != "none", reached[-1]
    assert "filter" in reached and "judged" in reached and NEVER in reached


def test_the_filter_leaves_the_rows_that_are_meant(page: Page, origin: str) -> None:
    page.goto(f"{origin}/samples/index.html")
    rows = page.locator("#images tbody tr:visible")
    everything = rows.count()
    page.get_by_label("Filter").fill("TORCH 2.8 cu128")
    assert 0 < rows.count() < everything
    expect(page.locator("#shown")).to_have_text(f"{rows.count()} of {everything}")
    assert all("cu128-torch28" in name for name in rows.locator("th").all_inner_texts())
    page.get_by_label("Filter").fill("")
    page.get_by_label("with validation runs").check()
    assert rows.count() == 6


def test_the_command_is_copied(context: BrowserContext, page: Page, origin: str) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{origin}/samples/images/{REBUILT}.html")
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == f"docker pull registry.example/images:{REBUILT}"


def test_hostile_words_are_read_as_words(page: Page, origin: str) -> None:
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    page.goto(f"{origin}/samples/nightly.html")
    assert "<img src=x onerror=alert(2)>" in page.locator("main").inner_text()
    page.goto(f"{origin}/samples/choose.html?gpu={samples.HOSTILE[:60].replace('&', '%26')}")
    expect(page.get_by_role("alert")).to_contain_text("<script>alert(1)")
    assert dialogs == []
