"""Selectors: what is printed is parsed to the same; what matches nothing names its neighbours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.config import selectors
from images.config.matrix import Sources
from images.config.selectors import Selector
from images.errors import UserError
from images.planning import plan
from tests.support.small import SOURCES
from tests.support.sources import SOURCES as REAL

EQUAL_OR_NOT = st.sampled_from(["=", "!="])
CONDITIONS = st.one_of(
    st.builds(
        Selector,
        key=st.sampled_from(["torch", "cuda", "wheel", "python"]),
        op=st.sampled_from([">=", "<=", "!=", "=", ">", "<"]),
        value=st.builds("{}.{}".format, st.integers(1, 20), st.integers(0, 20)),
    ),
    st.builds(
        Selector,
        key=st.just("arch"),
        op=EQUAL_OR_NOT,
        value=st.sampled_from(["sm90", "sm_120", "9.0"]),
    ),
    st.builds(
        Selector,
        key=st.just("profile"),
        op=EQUAL_OR_NOT,
        value=st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True),
    ),
)
GLOBS = st.builds(Selector, value=st.from_regex(r"[a-z0-9*?\-]{1,20}", fullmatch=True))


@given(CONDITIONS | GLOBS)
def test_a_printed_selector_is_parsed_to_the_same_selector(selector: Selector) -> None:
    assert selectors.parse(str(selector)) == selector


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cu126 torch25",
        "torch=>2.8",
        "torch=2.5.0",
        "cuda=12.6.3",
        "torch>=",
        "torch>=two",
        "colour=red",
        "arch>=sm90",
        "arch=90",
    ],
)
def test_a_text_that_is_no_selector_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UserError, match="write a name") as error:
        selectors.parse(text)

    assert error.value.code == 2


@pytest.mark.parametrize("text", ["platform=s390x", "platform!=s390x"])
def test_an_unknown_platform_is_refused_with_those_that_there_are(text: str) -> None:
    cause = "platform is one of: amd64, linux/amd64, arm64, linux/arm64"
    with pytest.raises(UserError, match=cause):
        selected(text, sources=REAL)


# --- which images a selector means ----------------------------------------------------------------


def selected(*texts: str, sources: Sources = SOURCES) -> set[str]:
    return {image.name for image in plan.select(texts, sources)}


def test_an_image_must_match_one_of_the_names() -> None:
    names = {"cu126-torch25", "cu126-torch27"}

    assert selected(*names) == names


def test_an_image_must_match_all_conditions() -> None:
    assert selected("cu126-*", "torch<2.7") == {"cu126-torch25", "cu126-torch26"}
    assert selected("torch>=2.10", "torch<2.11", "wheel=12.8", "profile=none") == {
        "cu128-torch210",
        "cu128-torch210-py313",
    }


def test_versions_are_compared_as_numbers() -> None:
    assert "cu128-torch210" in selected("torch>=2.9")
    assert "cu128-torch210" not in selected("torch<2.9")


def test_an_architecture_selects_the_images_that_support_it() -> None:
    for_sm120 = selected("arch=sm120")

    assert "cu128-torch28" in for_sm120
    assert "cu126-torch27" not in for_sm120


def test_an_alias_means_its_image() -> None:
    assert selected("latest") == {SOURCES.matrix.aliases["latest"]}


@pytest.mark.parametrize("platform", ["arm64", "linux/arm64"])
def test_a_platform_selects_the_images_for_it(platform: str) -> None:
    for_every_platform = selected("cu130-torch211*", sources=REAL)

    for_platform = selected("cu130-torch211*", f"platform={platform}", sources=REAL)
    for_others = selected("cu130-torch211*", f"platform!={platform}", sources=REAL)

    assert for_platform == {"cu130-torch211-arm64"}
    assert for_others == for_every_platform - for_platform


# --- selectors that match nothing -----------------------------------------------------------------


def test_a_name_that_matches_nothing_names_its_neighbours() -> None:
    with pytest.raises(UserError, match="nearest: cu126-torch25"):
        selected("cu126-torch25x")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cu130-torch21", ["cu130-torch211", "cu130-torch212", "cu130-torch211-devel"]),
        ("TORCH25", ["cu126-torch25"]),
        ("cu126-torch52", ["cu126-torch25"]),
        ("nothing-like-it", []),
        # A part of every name, and the beginning of none.
        ("c", []),
    ],
)
def test_names_that_have_a_text_in_them_come_before_those_that_are_spelled_like_it(
    text: str, names: list[str]
) -> None:
    all_names = ["cu126-torch25", "cu130-torch211-devel", "cu130-torch211", "cu130-torch212"]

    assert selectors.most_similar(text, all_names)[: len(names) or 1] == names


def test_a_condition_that_matches_nothing_is_named() -> None:
    with pytest.raises(UserError, match="matches no image"):
        selected("torch>9.0")


def test_selectors_that_match_nothing_together_are_an_error_of_their_own() -> None:
    with pytest.raises(plan.NoImageError, match="all of them"):
        selected("cu126-*", "wheel=13.0")
