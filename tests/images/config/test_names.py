"""Image names: what is printed is parsed to the same, and versions are numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from images.errors import UserError

MINORS = st.builds(Minor, st.integers(10, 19), st.integers(0, 30))
NAMES = st.builds(
    ImageName,
    cuda=MINORS,
    torch=st.builds(Minor, st.integers(1, 9), st.integers(0, 40)),
    python=st.none() | st.builds(Minor, st.just(3), st.integers(8, 30)),
    arch=st.none() | st.builds(Arch, st.integers(5, 19), st.integers(0, 9)),
    devel=st.booleans(),
    platform=st.sampled_from(Platform),
    profile=st.none() | st.from_regex(r"[a-z][a-z0-9]{0,9}(-[a-z0-9]{1,9}){0,2}", fullmatch=True),
)


def is_ambiguous(name: ImageName) -> bool:
    """Return whether a profile reads as another part: `sm90`, `py312`, `devel`, `arm64`."""
    if name.profile is None:
        return False
    words = name.profile.split("-")
    if not {"amd64", "arm64"}.isdisjoint(words):
        return True
    first = words[0]
    return first == "devel" or (first.startswith(("sm", "py")) and first[2:].isdigit())


@given(NAMES)
def test_a_printed_name_is_parsed_to_the_same_name(name: ImageName) -> None:
    if not is_ambiguous(name):
        assert ImageName.parse(str(name)) == name


@given(st.text(alphabet="cutorch0123456789-pysmdevelax", max_size=40))
def test_a_text_that_is_a_name_is_printed_as_it_was(text: str) -> None:
    try:
        name = ImageName.parse(text)
    except UserError:
        return
    assert str(name) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cu126",
        "torch25-cu126",
        "cu126-torch25-",
        "cu126-torch25-sm9",
        "cu126_torch25",
        "cu126-torch25-devel-devel",
        "arm64",
        "cu130-torch211-amd64-arm64-arm64",
        "cu130-torch211-arm64-arm64",
        "cu12\N{FULLWIDTH DIGIT SIX}-torch25",
        f"cu126-torch2{'9' * 5000}",
    ],
    ids=lambda text: text[:40] or "empty",
)
def test_a_text_that_is_no_name_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(UserError, match="write names as"):
        ImageName.parse(text)


def test_versions_and_architectures_are_ordered_as_numbers() -> None:
    assert Minor.parse("12.10") > Minor.parse("12.9")
    assert Minor.parse("2.10") > Minor.parse("2.9")
    assert Arch.parse("sm_120") > Arch.parse("9.0")


def test_a_minor_of_two_digits_is_read_from_a_name() -> None:
    name = ImageName.parse("cu1210-torch210")

    assert name.cuda == Minor(12, 10)
    assert name.torch == Minor(2, 10)


@given(MINORS)
def test_a_minor_has_the_first_two_parts_of_a_version(minor: Minor) -> None:
    assert Minor.parse(f"{minor}.7") == minor
    assert Minor.parse(f"{minor}+cu126") == minor
