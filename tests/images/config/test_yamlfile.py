"""YAML files: what is read of them, and in which line each part stands."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from images.config import yamlfile
from images.errors import UserError

TEXTS = st.text("abc: #-&*'\"[]{},|>\n019.~", max_size=8)
DATA = st.recursive(
    TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


@given(DATA, st.sampled_from([True, False, None]))
def test_a_written_document_is_read_back(data: object, flow_style: bool | None) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow_style)

    assert yamlfile.parse("x", text).data == data


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: &one [1, {b: 2}]\nc: *one\n", {"a": ["1", {"b": "2"}], "c": ["1", {"b": "2"}]}),
        ("&key a: 1\nb: *key\n", {"a": "1", "b": "a"}),
        ("? [a, b]\n: 1\n", {"['a', 'b']": "1"}),
        ("a: !!int 1\nb: ~\nc:\n<<: {d: 1}\n", {"a": "1", "b": "~", "c": "", "<<": {"d": "1"}}),
    ],
    ids=["an alias", "an alias of a key", "a list as key", "tags, null and merge keys"],
)
def test_every_scalar_stays_text_in_seldom_forms_too(text: str, data: object) -> None:
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
    ids=[
        "empty",
        "an open bracket",
        "a list that holds itself",
        "an unknown alias",
        "an anchor that stands twice",
        "two documents",
        "too deep",
    ],
)
def test_a_text_that_cannot_be_read_is_an_error_that_names_the_file(text: str) -> None:
    with pytest.raises(UserError, match=r"^x"):
        yamlfile.parse("x", text)


def test_a_key_that_stands_twice_is_listed_with_both_lines() -> None:
    (problem,) = yamlfile.parse("x", "a: 1\nb: 2\na: 3\n").duplicates

    assert problem.where == "x:3"
    assert problem.cause == "'a' stands twice (first in line 1)"


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("one",), 1),
        (("one", 1, "name"), 3),
        (("one", 7), 1),  # no such item: its parent
        (("two",), 1),  # no such key: the file
        (("more", 0, "name"), 3),  # an alias: where its anchor stands
    ],
)
def test_the_place_of_a_node_is_its_line_or_that_of_its_nearest_parent(
    path: tuple[str | int, ...], line: int
) -> None:
    file = yamlfile.parse("x", "one:\n  - {name: a}\n  - &b {name: b}\nmore:\n  - *b\n")

    assert file.where(path) == f"x:{line}"
