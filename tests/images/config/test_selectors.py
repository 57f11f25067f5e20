"""Selectors: parse and print are inverse; what is wrong is told; what matches nothing names its neighbours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.config import selectors
from images.config.selectors import Selector
from images.errors import UserError
from images.planning import plan
from tests.support.small import SOURCES
from tests.support.sources import SOURCES as REAL

VERSION = st.builds("{}.{}".format, st.integers(1, 20), st.integers(0, 20))
TWO = st.sampled_from(["=", "!="])
conditions = st.one_of(
    st.builds(
        Selector,
        key=st.sampled_from(["torch", "cuda", "wheel", "python"]),
        op=st.sampled_from([">=", "<=", "!=", "=", ">", "<"]),
        value=VERSION,
    ),
    st.builds(
        Selector, key=st.just("arch"), op=TWO, value=st.sampled_from(["sm90", "sm_120", "9.0"])
    ),
    st.builds(
        Selector,
        key=st.just("profile"),
        op=TWO,
        value=st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True),
    ),
)
globs = st.builds(Selector, value=st.from_regex(r"[a-z0-9*?\-]{1,20}", fullmatch=True))


@given(conditions | globs)
def test_print_then_parse_is_identity(selector: selectors.Selector) -> None:
    assert selectors.parse(str(selector)) == selector


def chosen(*wanted: str) -> set[str]:
    return {image.name for image in plan.select(wanted, SOURCES)}


def test_names_and_globs_add_up_and_conditions_all_hold() -> None:
    assert chosen("cu126-torch25", "cu126-torch27") == {"cu126-torch25", "cu126-torch27"}
    assert chosen("cu126-*", "torch<2.7") == {"cu126-torch25", "cu126-torch26"}
    assert chosen("torch>=2.10", "torch<2.11", "wheel=12.8", "profile=none") == {
        "cu128-torch210",
        "cu128-torch210-py313",
    }


@pytest.mark.parametrize("word", ["arm64", "linux/arm64"])
def test_a_platform_selects_the_images_for_it(word: str) -> None:
    every = {one.name for one in plan.select(["cu130-torch211*"], REAL)}
    chosen = {one.name for one in plan.select(["cu130-torch211*", f"platform={word}"], REAL)}
    others = {one.name for one in plan.select(["cu130-torch211*", f"platform!={word}"], REAL)}
    assert chosen == {"cu130-torch211-arm64"} and others == every - chosen
    with pytest.raises(
        UserError, match="'s390x' is no platform: there are amd64, linux/amd64, arm64, linux/arm64"
    ):
        selectors.parse("platform=s390x")


def test_versions_are_versions_archs_what_the_image_promises_and_an_alias_its_image() -> None:
    assert "cu128-torch210" in chosen("torch>=2.9") and "cu128-torch210" not in chosen("torch<2.9")
    assert "cu126-torch27" not in chosen("arch=sm120") and "cu128-torch28" in chosen("arch=sm120")
    assert chosen("latest") == {SOURCES.matrix.aliases["latest"]}


NO_SELECTORS = (
    "torch=>2.8 torch=2.5.0 cuda=12.6.3 torch>= torch>=two colour=red arch>=sm90 arch=90".split()
)


@pytest.mark.parametrize("text", [*NO_SELECTORS, "", "cu126 torch25"])
def test_what_is_no_selector_is_told(text: str) -> None:
    with pytest.raises(UserError, match="write a name") as error:
        selectors.parse(text)
    assert error.value.code == 2


def test_nothing_matched_names_neighbours() -> None:
    with pytest.raises(UserError, match="nearest: cu126-torch25"):
        plan.select(["cu126-torch25x"], SOURCES)
    with pytest.raises(UserError, match="matches no image"):
        plan.select(["torch>9.0"], SOURCES)
    with pytest.raises(plan.NoImageError, match="all of them"):
        plan.select(["cu126-*", "wheel=13.0"], SOURCES)
