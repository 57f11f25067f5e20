"""When labels and SBOM are not what was measured."""

from dataclasses import replace

import pytest

from images.publish import checks
from tests.support.attested import NAME, PIP, judged

PASS = judged(PIP)


def labels(**more: str) -> dict[str, str]:
    own = {"image": NAME, "pins": '{"pip":"26.3"}', **more}
    return {f"dev.truetag.{key.replace('_', '-')}": value for key, value in own.items()}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ()),
        ({"pins": '{"pip":"26.4"}'}, ("pip 26.4 is labelled, 26.3 was found",)),
        ({"pins": '{"pip":"26.3","torch":"2.7.1"}'}, ("torch 2.7.1 is labelled, nothing was found",)),
        ({"pins": "{"}, ("the label of pins can't be read",)),
        ({"image": "cu128-torch28"}, (f"the image is called {NAME}",)),
    ],
)
def test_labels_are_compared_with_what_was_measured(more: dict[str, str], words: tuple[str, ...]) -> None:
    assert checks.label_faults(labels(**more), [PASS]) == words


def test_labels_of_versions_are_compared_with_what_was_validated() -> None:
    torch = replace(PIP, subject="torch", expect={**PIP.expect, "cuda": "12.6"})
    row = replace(judged(PIP).claims[0], claim=torch)
    verdict = replace(PASS, claims=(*PASS.claims, row))
    good = {"torch": "26.3", "wheel_cuda": "12.6", "python": "3.11"}
    assert checks.label_faults(labels(**good), [verdict]) == ()
    assert checks.label_faults(labels(**{**good, "wheel_cuda": "12.8"}), [verdict]) == (
        "wheel-cuda 12.8 is labelled, 12.6 was validated",
    )


def test_the_sbom_is_compared_with_the_label() -> None:
    assert checks.sbom_faults(labels(), {"pip": "26.3", "more": "1"}) == ()
    assert checks.sbom_faults(labels(), {}) == ("pip 26.3 is labelled, the SBOM has none",)
