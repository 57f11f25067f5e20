"""Names: parse and print are inverse, and versions are numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from images.errors import UserError

minors = st.builds(Minor, st.integers(10, 19), st.integers(0, 30))
names = st.builds(
    ImageName,
    cuda=minors,
    torch=st.builds(Minor, st.integers(1, 9), st.integers(0, 40)),
    python=st.none() | st.builds(Minor, st.just(3), st.integers(8, 30)),
    arch=st.none() | st.builds(Arch, st.integers(5, 19), st.integers(0, 9)),
    devel=st.booleans(),
    platform=st.sampled_from(Platform),
    profile=st.none() | st.from_regex(r"[a-z][a-z0-9]{0,9}(-[a-z0-9]{1,9}){0,2}", fullmatch=True),
)


def ambiguous(name: ImageName) -> bool:
    """A profile that begins like another part (`sm90`, `py312`, `devel`) can't be told from it."""
    if name.profile is None:
        return False
    first = name.profile.split("-")[0]
    if {"amd64", "arm64"} & set(name.profile.split("-")):
        return True
    return first == "devel" or (first.startswith(("sm", "py")) and first[2:].isdigit())


@given(names)
def test_print_then_parse_is_identity(name: ImageName) -> None:
    if not ambiguous(name):
        assert ImageName.parse(str(name)) == name


@given(st.text(alphabet="cutorch0123456789-pysmdevelax", max_size=40))
def test_whatever_parses_prints_as_it_stood(text: str) -> None:
    try:
        name = ImageName.parse(text)
    except UserError:
        return
    assert str(name) == text


NO_NAMES = """cu126 torch25-cu126 cu126-torch25- cu126-torch25-sm9 cu126_torch25 cu126-torch25-devel-devel arm64
cu130-torch211-amd64-arm64-arm64 cu130-torch211-arm64-arm64""".split()


@pytest.mark.parametrize(
    "text", ["", *NO_NAMES, "cu12\N{FULLWIDTH DIGIT SIX}-torch25", f"cu126-torch2{'9' * 5000}"]
)
def test_what_is_no_name_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(UserError, match="names read"):
        ImageName.parse(text)


def test_versions_order_as_numbers() -> None:
    assert Minor.parse("12.10") > Minor.parse("12.9")
    assert Minor.parse("2.10") > Minor.parse("2.9")
    assert ImageName.parse("cu1210-torch210").cuda == Minor(12, 10)
    assert Arch.parse("sm_120") > Arch.parse("9.0")


@given(minors)
def test_minor_keeps_the_first_two_parts(minor: Minor) -> None:
    assert Minor.parse(f"{minor}.7") == Minor.parse(f"{minor}+cu126") == minor
