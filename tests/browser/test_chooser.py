"""The browser's chooser against images/chooser/choose.py: the same answer to the same question, word by word."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from packaging.version import Version
from playwright.sync_api import Browser, Page, expect

from images.chooser import choose, models
from images.chooser import machine as choose_machine
from images.chooser.choose import Wish
from images.chooser.machine import Machine
from images.config.names import Arch
from images.errors import UserError
from images.site import assemble, pages
from tests.support import site_samples as samples

KNOWN = samples.known(
    runs=[
        samples.run(name)
        for name in ("cu126-torch27-sm90", "cu126-torch27-sm80", "cu128-torch28-sm86", "cu130-torch211-py312-sm90")
    ],
    blocked=dict.fromkeys(("cu126-torch28", "cu128-torch27", "cu132-torch214"), "no lock"),
)
IMAGES = [one.image for one in assemble.planned(KNOWN) if one.image]
INDEX = assemble.make(KNOWN)
DATA = pages.chooser_data(INDEX)
FACTS = samples.sources().facts
DRIVERS = (
    "", "", "390.48", "450.80.02", "470.1", "520.61.05", "525.60.13", "525.60.12", "530.30.02", "535", "550.90",
    "550.90.07", "560.35.05", "570.26", "575.57.08", "580", "580.65.06", "580.95.05", "581rc1", "580.65.post1", "595.1",
    "999", "v555", "1!2", "550.90+x.1",
)  # fmt: skip
RANGES = (
    *[""] * 11, "2.7", "2.8", "2", "2.10", ">=2.7", "<2.9,>=2.7", ">2.7", ">2.7.1", "<=2.8", "~=2.8", "~=2.7.0",
    "==2.8.*", "!=2.8.*", "!=2.8.0,!=2.11.*", "==2.8.0", "==2.8", "===2.8.0", "===2.8", ">= 2.7 , <3", "<2.14.1",
    "<2.8rc1", ">2.8.0.post1", "==2.8.0+cu128", ">=2.8.dev0", "!=2.8.0+cu128", "<2.5", ",>=2.9,", ">=2.10,>=2.9,>=2.10",
)  # fmt: skip


@pytest.fixture(scope="module")
def rules(browser: Browser, origin: str) -> Iterator[Page]:
    """A page that has the rules; what they choose from is given with every question."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{origin}/samples/choose.html")
    yield page
    context.close()


def question(at: random.Random) -> dict[str, Any]:
    """A machine and a wish, and which images there are."""
    archs = sorted(
        {
            *{arch for image in IMAGES for arch in image.archs},
            Arch(5, 2),
            Arch(8, 7),
            Arch(8, 9),
            Arch(12, 1),
            Arch(13, 0),
        }
    )
    found = sorted(at.sample(archs, at.choice((1, 1, 1, 1, 2))))
    profiles = sorted({image.profile for image in IMAGES if image.profile})
    return {
        "images": sorted(at.sample(range(len(IMAGES)), at.choice((1, 5, 20, len(IMAGES), len(IMAGES))))),
        "archs": [str(arch) for arch in found],
        "driver": at.choice(DRIVERS),
        "arm": at.random() < 0.2,
        "profile": at.choice((*[None] * 12, "nothing", *profiles)),
        "torch": at.choice(RANGES),
        "python": at.choice(("", "", "", "3.11", "3.12", "3.13")),
        "devel": at.random() < 0.1,
    }


def in_python(asked: dict[str, Any]) -> dict[str, Any]:
    machine = Machine(
        gpus=("x",), archs=tuple(map(Arch.parse, asked["archs"])), driver=asked["driver"], arm=asked["arm"]
    )
    wish = Wish(
        profile=asked["profile"],
        torch=choose.torch_range(asked["torch"]),
        python=asked["python"],
        devel=asked["devel"],
    )
    offers = [
        choose.summary(IMAGES[number], FACTS, locked=not INDEX.images[number].blocked) for number in asked["images"]
    ]
    return choose.rank(offers, machine, wish).as_json()


IN_BROWSER = """([data, questions]) => questions.map((asked) => {
  const arch = (text) => ({ major: Number(text.slice(3, -1)), minor: Number(text.slice(-1)) });
  const machine = { gpus: ["x"], archs: asked.archs.map(arch), driver: asked.driver, arm: asked.arm };
  const wish = { ...asked, torch: truetag.torchRange(asked.torch) };
  return truetag.choose(asked.images.map((number) => data.images[number]), machine, wish);
})"""


def test_a_thousand_answers_are_the_same(rules: Page) -> None:
    at = random.Random(20261121)
    questions = [question(at) for _ in range(1000)]
    answers = rules.evaluate(IN_BROWSER, [DATA, questions])
    different = [
        (asked, expected, found)
        for asked, found in zip(questions, answers, strict=True)
        if (expected := in_python(asked)) != found
    ]
    assert not different, json.dumps(different[0], indent=1)
    fits = [len(one["fitting"]) for one in answers]
    assert 150 < fits.count(0) < 850, "questions of both kinds"
    assert {one["code"] for answer in answers for one in answer["fitting"]} == {"cubin", "ptx"}


def spelled(at: random.Random, name: str) -> str:
    """A model as somebody may write it."""
    text = at.choice((name, name, name.lower(), name.upper(), name.replace(" ", "")))
    front = at.choice(("", "", "NVIDIA ", "GeForce ", "Tesla ", "nvidia geforce "))
    back = at.choice(("", "", " Laptop GPU", " SUPER", " 80GB HBM3", "-SXM4-40GB MIG 1g.5gb", " Ti", " and A100", "x"))
    return front + text + back


def test_a_gpu_is_the_same_by_every_spelling(rules: Page) -> None:
    at = random.Random(4090)
    names = [name for name in models.by_name() for _ in range(12)]
    said = [spelled(at, name) for name in names]
    said += [
        "sm_89",
        "sm89",
        "8.9",
        "12.0",
        "sm_121",
        "sm_9",
        "90",
        "",
        "  ",
        "4090",
        "RTX 6000",
        "Radeon RX 7900",
        "ΩRTX 4090",
    ]
    found = rules.evaluate(
        "([data, said]) => said.map((text) => truetag.machine(data, text, '').machine || null)", [DATA, said]
    )
    for text, machine in zip(said, found, strict=True):
        assert machine == expected_machine(text), text
    assert sum(machine is None for machine in found) > 50 and sum(machine is not None for machine in found) > 500


def expected_machine(text: str) -> dict[str, Any] | None:
    try:
        arch = str(Arch.parse(text))
    except ValueError:
        arch = ""
    try:
        machine = choose_machine.parse("" if arch else text, arch, "")
    except UserError:
        return None
    archs = [{"major": arch.major, "minor": arch.minor} for arch in machine.archs]
    return {"gpus": list(machine.gpus), "archs": archs, "driver": "", "arm": machine.arm}


VERSIONS = (
    "2.7.1", "2.8.0", "2.8", "2.8.0.0", "2.8.0rc1", "2.8.0a1.dev3", "2.8.0.dev1", "2.8.0.post1", "2.8.0.post1.dev2",
    "2.8.0+cu128", "2.8.0+cu128.1", "2.8.0+1", "2.10.0", "2.9.1", "1!2.0", "v2.8.0-1", "2.8.0_beta.2", "2.8.0.c3",
    "2.8.1",
)  # fmt: skip
WORDS = (
    "newest", "2.8.*.*", ">=2.8.*", "~=2", "==2.8+x.*", "=2.8", ">>2", "2.7.1", "2,3", ">=2.8;x", "=== 2.8 x", "==",
    ">=2.x",
)  # fmt: skip


def test_versions_and_ranges_are_read_as_packaging_reads_them(rules: Page) -> None:
    found = rules.evaluate(
        "(texts) => texts.map((a) => texts.map((b) => truetag.compare(truetag.version(a), truetag.version(b))))",
        VERSIONS,
    )
    for a, line in zip(VERSIONS, found, strict=True):
        for b, order in zip(VERSIONS, line, strict=True):
            assert order == (Version(a) > Version(b)) - (Version(a) < Version(b)), (a, b)
    ranges = [
        *RANGES,
        *WORDS,
        *(f"{sign}{text}" for sign in ("==", "!=", "<=", ">=", "<", ">", "~=", "===") for text in VERSIONS),
    ]
    answers = rules.evaluate(
        """([ranges, versions]) => ranges.map(truetag.torchRange).map((range) => range &&
          { written: range.written, holds: versions.map((one) => range.contains(one)) })""",
        [ranges, VERSIONS],
    )
    for text, answer in zip(ranges, answers, strict=True):
        assert answer == expected_range(text), text
    assert answers.count(None) > len(WORDS) - 2


def expected_range(text: str) -> dict[str, Any] | None:
    try:
        wanted = choose.torch_range(text)
    except UserError:
        return None
    return {"written": str(wanted), "holds": [wanted.contains(one, prereleases=True) for one in VERSIONS]}


def test_a_person_asks_and_reads_the_answer_of_the_command_line(page: Page, origin: str) -> None:
    page.goto(f"{origin}/samples/index.html")
    page.get_by_role("combobox", name="GPU", exact=True).fill("RTX 4090")
    page.get_by_label("Driver").fill("550.90")
    page.keyboard.press("Enter")
    images = [one.image for one in assemble.planned(samples.known()) if one.image]
    machine = choose_machine.parse("RTX 4090", "", "550.90")
    expected = choose.choose(images, machine, Wish(), FACTS)
    answer = page.locator("#answer")
    expect(answer.locator("h2")).to_have_text(f"Take {expected.fitting[0].name}")
    text = answer.inner_text()
    assert str(machine) in text and all(reason in text for reason in expected.fitting[0].reasons)
    # The page has one row more: of images without a lock, of which `choose` here knows nothing. It shows four.
    assert all("; ".join(reasons) in text and names[0] in text for names, reasons in expected.others[:3])
    assert f"nox -s build -- {expected.fitting[0].name}" in text and "Not validated" in text
    expect(answer.get_by_text("Others with validation runs")).to_contain_text("cu126-torch27")
    answer.locator("h2 a").click()
    expect(page.locator("h1")).to_have_text(expected.fitting[0].name)


def test_a_question_is_kept_in_the_address(page: Page, origin: str) -> None:
    page.goto(f"{origin}/samples/choose.html")
    page.get_by_role("combobox", name="GPU", exact=True).fill("H100")
    page.get_by_label("Driver").fill("580.65")
    page.get_by_label("torch").fill(">=2.7")
    page.get_by_label("Profile").select_option("axolotl")
    page.get_by_role("button", name="Which image?").click()
    first = page.locator("#answer").inner_text()
    assert "-axolotl" in first.splitlines()[1] or "-axolotl" in first
    page.reload()
    assert page.locator("#answer").inner_text() == first
    expect(page.get_by_label("Profile")).to_have_value("axolotl")
    page.get_by_label("CUDA compiler").check()
    page.get_by_role("button", name="Which image?").click()
    expect(page.locator("#answer h2")).to_have_text("No image fits.")


@pytest.mark.parametrize(
    ("field", "text", "told"),
    [
        ("gpu", "RTX 9990", "is no GPU that is known here"),
        ("gpu", "RTX 6000", "nearest: "),
        ("driver", "new", "write it as nvidia-smi does: 550.90.07"),
        ("torch", "newest", "is no range of versions; write >=2.7"),
    ],
)
def test_what_cannot_be_read_is_told_with_a_way_out(page: Page, origin: str, field: str, text: str, told: str) -> None:
    page.goto(f"{origin}/samples/choose.html")
    page.get_by_role("combobox", name="GPU", exact=True).fill("H100")
    page.locator(f"#chooser [name={field}]").fill(text)
    page.get_by_role("button", name="Which image?").click()
    expect(page.get_by_role("alert")).to_contain_text(told)
