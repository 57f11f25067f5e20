"""matrix.yaml that is wrong: every error at once, with file and line."""

from pathlib import Path

import pytest

from images.config import matrix
from images.errors import UserError
from images.planning import plan
from tests.support import small
from tests.support.cases import cases

GOOD = small.MATRIX.read_text()


def problems(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "matrix.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        matrix.load(file, small.FACTS)
    assert error.value.code == 2
    return [str(problem).replace(f"{tmp_path}/", "") for problem in error.value.problems]


def line_of(text: str, needle: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if needle in line)


def require_told(told: list[str], text: str, sentences: dict[str, str]) -> None:
    """Require a problem at the line of each text, with its sentence."""
    for needle, sentence in sentences.items():
        assert any(
            one.startswith(f"matrix.yaml:{line_of(text, needle)}: ") and sentence in one
            for one in told
        ), told


def test_keys_and_values_that_are_wrong_are_told_all_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("defaults:\n", "defaults:\n  colour: red\n")
    text = text.replace("images:\n", "images:\n  - {name: cu126-torch99x}\n")
    text = text.replace("torchao: 0.9.0", "torchao: newest")
    text = f"{text}size: 3\ncommon: {{}}\n"
    sentences = {
        "colour: red": "unknown key 'defaults.colour'",
        "cu126-torch99x}": "is not an image name",
        "torchao: newest": "'newest' is no version",
        "size: 3": "unknown key 'size'",
        "common: {}": "'common' stands twice",
    }
    require_told(problems(tmp_path, text), text, sentences)


def test_names_that_stand_twice_or_point_at_nothing_are_told_all_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("images:\n", "images:\n  - {name: cu126-torch27}\n")
    text = text.replace("  latest: cu128-torch28", "  latest: cu118-torch27\n  old: cu126-torch99")
    told = problems(tmp_path, text)
    require_told(told, text, {"old: cu126-torch99": "which is not in `images`"})
    assert "cu126-torch27 stands twice" in "\n".join(told)


def test_a_refused_image_that_an_alias_names_stops_no_plan(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(
        GOOD.replace("  latest: cu128-torch28", "  latest: cu118-torch27")
    )
    planned = plan.plan(matrix.load(tmp_path / "matrix.yaml", small.FACTS))
    told = {one.name: one.reasons[-1] for one in planned if one.reasons}
    assert (
        "the alias latest names this image" in told["cu118-torch27"]
        and sum("alias" in text for text in told.values()) == 1
    )
    assert any(one.image for one in planned)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "matrix.yaml:1: is empty"),
        ("# only a comment\n", "matrix.yaml:1: is empty"),
        ("a: [1, 2\nb: 3\n", "matrix.yaml:2: is not YAML"),
        ("a: 1\n\tb: 2\n", "matrix.yaml:2: is not YAML"),
        ("- 1\n", "matrix.yaml:1: "),
        ("just words\n", "matrix.yaml:1: "),
    ],
)
def test_what_is_no_matrix_is_told_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    assert problems(tmp_path, text)[0].startswith(sentence)


def test_a_pin_in_no_layer_and_a_name_not_canonical(tmp_path: Path) -> None:
    text = GOOD.replace("common: {", "common: {Flash_Attn: 1.0, numpy: 2.0.0, ")
    found = "\n".join(problems(tmp_path, text))
    assert "write 'Flash_Attn' as 'flash-attn'" in found
    assert "no layer installs 'numpy'" in found


def test_comments_do_not_change_the_revision_and_versions_are_never_floats(tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(GOOD.replace('pip: "26.3"', "pip: 26.10"))
    assert matrix.load(file, small.FACTS).matrix.common["pip"] == "26.10"
    file.write_text(GOOD + "\n# a comment\n")
    assert matrix.load(file, small.FACTS).revision == small.SOURCES.revision
    file.write_text(GOOD.replace('pip: "26.3"', 'pip: "26.2"'))
    assert matrix.load(file, small.FACTS).revision != small.SOURCES.revision


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is missing"):
        matrix.load(matrix=tmp_path / "nothing.yaml")


@pytest.mark.parametrize(("before", "after", "sentence"), cases(__file__, "mistakes"))
def test_each_mistake_is_told_and_none_is_a_traceback(
    tmp_path: Path, before: str, after: str, sentence: str
) -> None:
    assert before in GOOD
    found = problems(tmp_path, GOOD.replace(before, after, 1))
    assert any(sentence in problem for problem in found), found
    assert all(problem.startswith("matrix.yaml") for problem in found)


def test_the_toolkit_needs_a_layer_above_and_one_below(tmp_path: Path) -> None:
    layers = GOOD.partition("layers:\n")[2].partition("\n\n")[0]
    assert any(
        "at least 2 items" in problem
        for problem in problems(tmp_path, GOOD.replace(layers, "  torch: [torch]"))
    )
