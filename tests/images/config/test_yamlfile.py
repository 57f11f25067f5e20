"""YAML files: what is read of them with and without their lines."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from images.config import paths, yamlfile
from images.errors import UserError

TEXT = st.text("abc: #-&*'\"[]{},|>\n019.~", max_size=8)
DATA = st.recursive(TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


@given(DATA, st.sampled_from([True, False, None]))
def test_a_document_is_what_was_written_with_and_without_its_lines(data: object, flow: bool | None) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow)
    assert yamlfile._simple(text) == yamlfile.parse("x", text).data == yamlfile._marked("x", text).data == data


@pytest.mark.parametrize(
    "text",
    [
        "a: &one [1, {b: 2}]\nc: *one\n",
        "&key a: 1\n*key : 2\n",
        "a: 1\nb: 2\na: 3\n",
        "? [a, b]\n: 1\n",
        "a: !!int 1\nb: ~\nc:\n<<: {d: 1}\n",
    ],
)
def test_what_is_seldom_is_read_as_with_its_lines(text: str) -> None:
    read = yamlfile.parse("x", text)
    assert read.data == yamlfile._marked("x", text).data
    assert read.duplicates == yamlfile._marked("x", text).duplicates


@pytest.mark.parametrize(
    "text", ["", "a: [1\n", "a: &a [*a]\n", "a: *b\n", "a: &b 1\nc: &b 2\n", "a: 1\n---\nb: 2\n", "[" * 5000]
)
def test_what_can_not_be_read_is_told_and_no_traceback(text: str) -> None:
    with pytest.raises(UserError, match=r"^x"):
        yamlfile.parse("x", text)


def test_a_key_that_stands_twice_is_told_with_both_lines() -> None:
    (problem,) = yamlfile.parse("x", "a: 1\nb: 2\na: 3\n").duplicates
    assert (problem.where, problem.cause) == ("x:3", "'a' stands twice (first in line 1)")


def test_lines_are_read_for_a_problem_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    composed = yamlfile._composed
    monkeypatch.setattr(yamlfile, "_composed", lambda text: asked.append(text) or composed(text))
    text = "one:\n  - {name: a}\n  - {name: b}\n"
    file = yamlfile.parse("x", text)
    assert file.data == {"one": [{"name": "a"}, {"name": "b"}]} and not asked
    assert [file.where(path) for path in (("one",), ("one", 1, "name"), ("one", 7), ("two",))] == [
        "x:1",
        "x:3",
        "x:1",
        "x:1",
    ]
    assert asked == [text], "read once for all of them"


@pytest.mark.parametrize("path", [paths.DATA / "facts.yaml", paths.workspace().matrix], ids=lambda path: path.name)
def test_the_projects_own_files_need_no_lines(path: object) -> None:
    text = paths.Path(str(path)).read_text()
    assert yamlfile._simple(text) == yamlfile._marked("x", text).data
