"""YAML files: what is read of them, and where each part stands."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from images.config import yamlfile
from images.errors import UserError

TEXT = st.text("abc: #-&*'\"[]{},|>\n019.~", max_size=8)
DATA = st.recursive(
    TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)


@given(DATA, st.sampled_from([True, False, None]))
def test_a_document_is_what_was_written(data: object, flow: bool | None) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow)
    assert yamlfile.parse("x", text).data == data


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: &one [1, {b: 2}]\nc: *one\n", {"a": ["1", {"b": "2"}], "c": ["1", {"b": "2"}]}),
        ("&key a: 1\nb: *key\n", {"a": "1", "b": "a"}),
        ("? [a, b]\n: 1\n", {"['a', 'b']": "1"}),
        ("a: !!int 1\nb: ~\nc:\n<<: {d: 1}\n", {"a": "1", "b": "~", "c": "", "<<": {"d": "1"}}),
    ],
)
def test_what_is_seldom_is_read_and_every_scalar_stays_text(text: str, data: object) -> None:
    assert yamlfile.parse("x", text).data == data


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [1\n",
        "a: &a [*a]\n",
        "a: *b\n",
        "a: &b 1\nc: &b 2\n",
        "a: 1\n---\nb: 2\n",
        "[" * 5000,
    ],
)
def test_what_can_not_be_read_is_told_and_no_traceback(text: str) -> None:
    with pytest.raises(UserError, match=r"^x"):
        yamlfile.parse("x", text)


def test_a_key_that_stands_twice_is_told_with_both_lines() -> None:
    (problem,) = yamlfile.parse("x", "a: 1\nb: 2\na: 3\n").duplicates
    assert (problem.where, problem.cause) == ("x:3", "'a' stands twice (first in line 1)")


def test_a_place_is_the_line_of_a_node_or_of_its_nearest_parent() -> None:
    file = yamlfile.parse("x", "one:\n  - {name: a}\n  - &b {name: b}\nmore:\n  - *b\n")
    places = {
        ("one",): 1,
        ("one", 1, "name"): 3,
        ("one", 7): 1,
        ("two",): 1,
        ("more", 0, "name"): 3,
    }
    assert {path: file.where(path) for path in places} == {
        path: f"x:{line}" for path, line in places.items()
    }
