"""The page of known errors in a browser: it finds what validate/hints.py finds."""

from playwright.sync_api import Page, expect

from tests.support.checkout import ROOT
from validate import hints

_TRY = """(box, texts) => texts.map(text => {
    box.value = text;
    box.dispatchEvent(new Event("input", {bubbles: true}));
    const known = [...document.querySelectorAll(".known")].filter(one => one.checkVisibility());
    const words = one => one.innerText.trim().split(/\\s+/).join(" ");
    return known.map(one => [one.querySelector("h2").innerText, words(one.querySelector("code"))]);
})"""
"""Type each text; what is visible then. In one call: a browser is asked for each of 527 otherwise."""


def test_every_line_finds_the_command_lines_row(page: Page, origin: str) -> None:
    page.goto(f"{origin}/samples/errors.html")
    box, known, told = page.get_by_label("Error text"), page.locator(".known:visible"), page.locator("#told")
    expect(known).to_have_count(sum(not row.only_named for row in hints.known()))
    lines = (ROOT / "tests/tools/hint_lines.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [line.split("\t") for line in lines if not line.startswith("release\t")]
    link, unbroken = "\x1b]8;;https://a/b\x1b\\", str.maketrans(" ", "\xa0")
    found = box.evaluate(_TRY, [f"a line\n{link}\x1b[31m{line.translate(unbroken)}\x1b[0m\n" for _, line in rows])
    right = [[[wanted, " ".join(line.translate(hints._PLAIN).split())]] for wanted, line in rows]
    assert [pair for pair in zip(found, right, strict=True) if pair[0] != pair[1]] == []
    box.fill("nvcc fatal   : Unsupported gpu architecture 'compute_120'")
    expect(known.locator(".fix")).to_contain_text("nvcc knows it from CUDA 12.8 on. ")
    # Pasted, as above: to type 331 lines takes Chromium half a minute of processor time.
    assert box.evaluate(_TRY, [(ROOT / "tests/tools/healthy.log").read_text(encoding="utf-8")]) == [[]]
    expect(told).to_have_text("Known errors in 331 lines: 0")
