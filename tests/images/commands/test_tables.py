"""Tables of verdicts: what a person sees first."""

import pytest

from images.commands import tables
from validate.judge import Verdict


@pytest.mark.parametrize(
    ("reference", "title"),
    [
        ("", "cu126-torch25  sha256:0123456789ab"),
        ("cu126-torch25", "cu126-torch25  sha256:0123456789ab"),
        ("me/mine:1", "me/mine:1, by the claims of cu126-torch25  sha256:0123456789ab"),
    ],
)
def test_the_title_names_the_image_that_was_judged(reference: str, title: str) -> None:
    judged = Verdict(image="cu126-torch25", digest="sha256:0123456789abcdef", claims=())
    assert str(tables.verdict(judged, reference).title).partition("  [")[0] == title
