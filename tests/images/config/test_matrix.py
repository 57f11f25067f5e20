"""A matrix.yaml that is wrong: every error at once, with file and line."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from images.config import matrix
from images.config.matrix import Sources
from images.errors import UserError
from images.planning import plan
from tests.support import small
from tests.support.cases import cases

SOUND = small.MATRIX.read_text()


def load_text(folder: Path, text: str) -> Sources:
    file = folder / "matrix.yaml"
    file.write_text(text)
    return matrix.load(file, small.FACTS)


def problems_of(folder: Path, text: str) -> list[str]:
    """Return the problems of a matrix with this text, with the file's name for its path."""
    with pytest.raises(UserError) as error:
        load_text(folder, text)
    assert error.value.code == 2
    return [str(problem).replace(f"{folder}/", "") for problem in error.value.problems]


def require_problem(problems: Sequence[str], text: str, part_of_line: str, cause: str) -> None:
    """Require a problem with this cause at the first line of the matrix that has a part."""
    lines = text.splitlines()
    number = next(index for index, line in enumerate(lines, 1) if part_of_line in line)
    at_line = [problem for problem in problems if problem.startswith(f"matrix.yaml:{number}: ")]
    assert any(cause in problem for problem in at_line), problems


def test_all_wrong_keys_and_values_are_named_at_once(tmp_path: Path) -> None:
    text = SOUND.replace("defaults:\n", "defaults:\n  colour: red\n")
    text = text.replace("images:\n", "images:\n  - {name: cu126-torch99x}\n")
    text = text.replace("torchao: 0.9.0", "torchao: newest")
    text = f"{text}size: 3\ncommon: {{}}\n"

    problems = problems_of(tmp_path, text)

    require_problem(problems, text, "colour: red", "unknown key 'defaults.colour'")
    require_problem(problems, text, "cu126-torch99x}", "is no name of an image")
    require_problem(problems, text, "torchao: newest", "'newest' is no version")
    require_problem(problems, text, "size: 3", "unknown key 'size'")
    require_problem(problems, text, "common: {}", "'common' stands twice")


@pytest.mark.parametrize(
    ("old", "new", "step"),
    [
        ("nightly:\n", "nightly:\n  trakc: []\n", "rename it to track, or delete it"),
        ("images:\n", "images:\n  - {name: cu126-torch25, colour: red}\n", "(name, archs, "),
    ],
    ids=["a typing error", "a key of no section"],
)
def test_an_unknown_key_is_answered_with_those_of_its_section(
    tmp_path: Path, old: str, new: str, step: str
) -> None:
    problems = problems_of(tmp_path, SOUND.replace(old, new))

    assert any("unknown key" in problem and step in problem for problem in problems), problems


def test_all_names_that_stand_twice_or_point_at_nothing_are_named_at_once(tmp_path: Path) -> None:
    text = SOUND.replace("images:\n", "images:\n  - {name: cu126-torch27}\n")
    text = text.replace("  latest: cu128-torch28", "  latest: cu118-torch27\n  old: cu126-torch99")

    problems = problems_of(tmp_path, text)

    require_problem(problems, text, "old: cu126-torch99", "which is not in `images`")
    assert any("cu126-torch27 stands twice" in problem for problem in problems)


@pytest.mark.parametrize(("before", "after", "cause"), cases(__file__, "mistakes"))
def test_each_mistake_is_named(tmp_path: Path, before: str, after: str, cause: str) -> None:
    assert before in SOUND

    problems = problems_of(tmp_path, SOUND.replace(before, after, 1))

    assert any(cause in problem for problem in problems), problems
    assert all(problem.startswith("matrix.yaml") for problem in problems)


def test_a_folder_in_the_place_of_a_matrix_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").mkdir()

    with pytest.raises(UserError, match="is a folder, and no file"):
        matrix.load(tmp_path / "matrix.yaml")


def test_a_condition_on_no_platform_is_named_at_its_line(tmp_path: Path) -> None:
    text = SOUND.replace("select: cu118-*", "select: platform=arm46")

    problems = problems_of(tmp_path, text)

    require_problem(problems, text, "platform=arm46", "there is no platform 'arm46'")


@pytest.mark.parametrize(
    "condition", ["platform=arm64", "platform!=linux/amd64", "profile=none", "arch=8.9"]
)
def test_a_condition_may_match_no_image(tmp_path: Path, condition: str) -> None:
    load_text(tmp_path, SOUND.replace("  track: [", f"  track: [{condition}, "))


def test_a_pin_must_be_spelled_canonically_and_be_in_a_layer(tmp_path: Path) -> None:
    text = SOUND.replace("common: {", "common: {Flash_Attn: 1.0, numpy: 2.0.0, ")

    problems = "\n".join(problems_of(tmp_path, text))

    assert "write 'Flash_Attn' as 'flash-attn'" in problems
    assert "'numpy' is pinned here, and no layer installs it" in problems


def test_a_package_of_a_layer_may_have_its_version_from_an_optional_one_of_a_profile(
    tmp_path: Path,
) -> None:
    load_text(tmp_path, SOUND.replace("  light: [", "  light: [mamba-ssm, "))


def test_the_toolkit_needs_a_layer_above_it_and_one_below(tmp_path: Path) -> None:
    layers = SOUND.partition("layers:\n")[2].partition("\n\n")[0]

    problems = problems_of(tmp_path, SOUND.replace(layers, "  torch: [torch]"))

    assert any("at least 2 items" in problem for problem in problems)


@pytest.mark.parametrize(
    ("text", "beginning"),
    [
        ("", "matrix.yaml: the file is empty"),
        ("# only a comment\n", "matrix.yaml: the file is empty"),
        (
            "a: [1, 2\nb: 3\n",
            "matrix.yaml:2: is not YAML: did not find expected ',' or ']': column 2, at ':'",
        ),
        (
            "env: {HF_TOKEN: hf_SECRET123, x: [}\n",
            "matrix.yaml:1: is not YAML: did not find expected node content: column 35, at '}'\n",
        ),
        (
            "a: 1\n\tb: 2\n",
            "matrix.yaml:2: is not YAML: a tab is in column 1\n"
            "    next: replace the tab with spaces",
        ),
        (
            "a: @b\n",
            "matrix.yaml:1: is not YAML: no value may begin with @, as in column 4\n"
            "    next: put this value into quotes",
        ),
        ("- 1\n", "matrix.yaml:1: "),
        ("just words\n", "matrix.yaml:1: "),
    ],
    ids=[
        "empty",
        "only a comment",
        "an open bracket",
        "a line with a token",
        "a tab",
        "an at sign",
        "a list",
        "words",
    ],
)
def test_a_file_that_is_no_matrix_is_named_with_the_line(
    tmp_path: Path, text: str, beginning: str
) -> None:
    assert problems_of(tmp_path, text)[0].startswith(beginning)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is missing"):
        matrix.load(matrix=tmp_path / "nothing.yaml")


def test_an_alias_of_a_refused_image_stops_no_plan_and_is_named_at_that_image(
    tmp_path: Path,
) -> None:
    text = SOUND.replace("  latest: cu128-torch28", "  latest: cu118-torch27")

    planned = plan.plan(load_text(tmp_path, text))

    last_reasons = {image.name: image.reasons[-1] for image in planned if image.reasons}
    assert "the alias latest names this image" in last_reasons["cu118-torch27"]
    assert [name for name, reason in last_reasons.items() if "alias" in reason] == ["cu118-torch27"]
    assert any(image.image for image in planned)


# --- sound files ----------------------------------------------------------------------------------


def test_a_version_is_never_read_as_a_number(tmp_path: Path) -> None:
    sources = load_text(tmp_path, SOUND.replace('pip: "26.3"', "pip: 26.10"))

    assert sources.matrix.common["pip"] == "26.10"


def test_a_comment_does_not_change_the_revision(tmp_path: Path) -> None:
    sources = load_text(tmp_path, SOUND + "\n# a comment\n")

    assert sources.revision == small.SOURCES.revision


def test_another_pin_changes_the_revision(tmp_path: Path) -> None:
    sources = load_text(tmp_path, SOUND.replace('pip: "26.3"', 'pip: "26.2"'))

    assert sources.revision != small.SOURCES.revision


def test_a_password_in_the_address_of_an_index_is_refused_and_not_shown(tmp_path: Path) -> None:
    index = "indexes:\n  acme: {url: 'https://me:s3cret@a.test/simple', packages: [a]}\n"

    (problem,) = problems_of(tmp_path, f"{SOUND}{index}")

    assert "holds a login" in problem
    assert "s3cret" not in problem


def test_where_a_private_package_comes_from_does_not_change_the_revision(tmp_path: Path) -> None:
    """It is a label of every image, and so a part of its digest."""
    index = "indexes:\n  acme: {url: 'https://a.test/simple', packages: [acme]}\n"

    assert load_text(tmp_path, f"{SOUND}{index}").revision == load_text(tmp_path, SOUND).revision
