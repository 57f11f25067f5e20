"""The page of known errors in a browser: it finds what validate/hints.py finds."""

from playwright.sync_api import Page, expect

from tests.support.checkout import ROOT
from validate import hints


def test_every_line_finds_the_command_lines_row(page: Page, origin: str) -> None:
    page.goto(f"{origin}/samples/errors.html")
    box, known, told = page.get_by_label("Error text"), page.locator(".known:visible"), page.locator("#told")
    expect(known).to_have_count(len(hints.known()))
    lines = (ROOT / "tests/tools/hint_lines.tsv").read_text(encoding="utf-8").splitlines()[1:]
    for wanted, line in (line.split("\t") for line in lines):
        box.fill(f"a line\n\x1b[31m{line}\x1b[0m\n")
        assert known.locator("h2").all_inner_texts() == [wanted]
        assert known.locator("code").first.inner_text().split() == line.split()
    box.fill("ImportError: cannot import name 'shard_checkpoint' from 'transformers.modeling_utils'")
    expect(known.locator(".fix")).to_contain_text("transformers 4.46.3 is the last with shard_checkpoint")
    box.fill((ROOT / "tests/tools/healthy.log").read_text(encoding="utf-8"))
    expect(known).to_have_count(0)
    expect(told).to_have_text("Known errors in 331 lines: 0")
