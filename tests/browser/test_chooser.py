"""The chooser's page in a browser: it looks up what images/planning/chooser.py answers."""

import random

import pytest
from playwright.sync_api import Page, expect

from images.errors import UserError
from images.planning import chooser
from images.planning.chooser import Options
from images.site import pages
from tests.support import site_samples as samples

INDEX = pages.make(samples.known())
OFFERS = INDEX.images


_ASK = """(form, asked) => asked.map(([gpu, driver, profile]) => {
    Object.entries({gpu, driver, profile}).forEach(([name, value]) => { form.elements[name].value = value; });
    form.requestSubmit();
    return document.querySelector("#answer").innerText;
})"""
"""Fill the form and send it, as somebody who types and clicks does in the next test."""


def spelled(at: random.Random, name: str) -> str:
    """A model as somebody may write it."""
    text = at.choice((name, name, name.lower(), name.upper(), name.replace(" ", ""), name.split()[-1]))
    front = at.choice(("", "", "NVIDIA ", "GeForce ", "Tesla ", "nvidia geforce "))
    back = at.choice(("", "", " Laptop GPU", " SUPER", " 80GB HBM3", "-SXM4-40GB MIG 1g.5gb", " Ti", " and A100", "x"))
    return front + text + back


def test_every_answer_is_the_command_lines(page: Page, origin: str) -> None:
    """Models by every spelling, drivers of every age, profiles: the best image and its reasons, word by word."""
    at = random.Random(3)
    drivers = ("", "390.48", "525.60.12", "525.60.13", "535", "550.90.07", "570.26", "580.65.06", "999")
    asked = [
        (spelled(at, at.choice([*chooser.models()])), at.choice(drivers), at.choice(("", "", "axolotl", "unsloth")))
        for _ in range(60)
    ]
    page.goto(f"{origin}/samples/choose.html")
    answers = page.locator("#chooser").evaluate(_ASK, asked)
    for (gpu, driver, profile), shown in zip(asked, answers, strict=True):
        try:
            machine = chooser.described(gpu, "", driver)
        except UserError:
            assert "is no one GPU that is known here" in shown, gpu
            continue
        choice = chooser.rank(OFFERS, machine, Options(profile=profile or None))
        assert str(machine) in shown, gpu
        if not choice.fitting:
            assert "No image fits." in shown
        for best in choice.fitting[:1]:
            assert f"Take {best.name}" in shown and all(reason in shown for reason in best.reasons), (gpu, driver)


def test_a_person_asks_and_reads_the_answer_of_the_command_line(page: Page, origin: str) -> None:
    page.goto(f"{origin}/samples/index.html")
    page.get_by_role("combobox", name="GPU", exact=True).fill("RTX 4090")
    page.get_by_label("Driver").fill("550.90")
    page.keyboard.press("Enter")
    machine = chooser.described("RTX 4090", "", "550.90")
    expected = chooser.rank(OFFERS, machine, Options())
    answer = page.locator("#answer")
    expect(answer.locator("h2")).to_have_text(f"Take {expected.fitting[0].name}")
    text = answer.inner_text()
    assert str(machine) in text and all(reason in text for reason in expected.fitting[0].reasons)
    assert all(reason in text for reason in expected.others[0][1])
    assert f"nox -s build -- {expected.fitting[0].name}" in text and "Not validated" in text
    answer.locator("h2 a").click()
    expect(page.locator("h1")).to_have_text(expected.fitting[0].name)


def test_the_first_whose_gpu_tier_passed_is_named_as_the_command_line_does(page: Page, origin: str) -> None:
    machine = chooser.described("RTX 4090", "", "580.95")
    shown = pages.chooser_data(INDEX)["images"]
    known = {one["name"]: chooser.Known(get=one["get"], sentence=one["sentence"], ran=one["ran"]) for one in shown}
    told = chooser.sentences(chooser.rank(OFFERS, machine, Options()), machine, known)
    (ran,) = (line for line in told if line.startswith("The first of them whose gpu tier passed: "))
    page.goto(f"{origin}/samples/choose.html?gpu=RTX+4090&driver=580.95")
    expect(page.locator("#answer")).to_contain_text(ran)


def test_a_question_is_kept_in_the_address(page: Page, origin: str) -> None:
    page.goto(f"{origin}/samples/choose.html")
    page.get_by_role("combobox", name="GPU", exact=True).fill("H100")
    page.get_by_label("Driver").fill("580.65")
    page.get_by_label("torch").select_option("2.8")
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
        ("gpu", "RTX 9990", "is no one GPU that is known here"),
        ("gpu", "RTX 6000", "take one of the list, or write its architecture"),
        ("driver", "12.4", "write it as nvidia-smi does: 550.90.07"),
    ],
)
def test_what_cannot_be_read_is_told_with_a_way_out(page: Page, origin: str, field: str, text: str, told: str) -> None:
    page.goto(f"{origin}/samples/choose.html")
    page.get_by_role("combobox", name="GPU", exact=True).fill("H100")
    page.locator(f"#chooser [name={field}]").fill(text)
    page.get_by_role("button", name="Which image?").click()
    expect(page.get_by_role("alert")).to_contain_text(told)
