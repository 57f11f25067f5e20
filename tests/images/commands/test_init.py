"""`init`: the first matrix of somebody who has none."""

from pathlib import Path

import pytest

from images.config.matrix import load
from images.planning import plan
from tests.support.commands import call


def test_the_matrix_has_two_images_that_nothing_speaks_against(tmp_path: Path) -> None:
    finished = call("init", str(tmp_path / "new"))

    assert finished.returncode == 0, finished.stderr
    images = plan.plan(load(tmp_path / "new" / "matrix.yaml"))
    assert len(images) == 2
    for image in images:
        assert image.image, image.reasons
        # A package that no table knows, or a wrong result that plain training meets.
        unexpected = ("nothing is known", "silently wrong:")
        assert not [text for text in image.warnings if text.startswith(unexpected)]


def test_the_next_command_is_one_that_works(tmp_path: Path) -> None:
    written = call("init", str(tmp_path)).stderr

    assert "with cu126-torch27 and cu130-torch214" in written
    matrix = tmp_path / "matrix.yaml"
    # The terminal wraps the message.
    assert f"`nox -s plan -- --matrix {matrix}`" in " ".join(written.split())
    assert call("plan", "--matrix", str(matrix)).returncode == 0


@pytest.mark.parametrize("is_link", [False, True])
def test_a_matrix_that_is_there_stays_as_it_is(tmp_path: Path, is_link: bool) -> None:
    matrix = tmp_path / "matrix.yaml"
    if is_link:
        matrix.symlink_to("nowhere")
    else:
        matrix.write_text("mine")

    finished = call("init", str(tmp_path))

    assert finished.returncode == 2
    assert "is there already, and was not changed" in finished.stderr
    if is_link:
        assert not (tmp_path / "nowhere").exists()
    else:
        assert matrix.read_text() == "mine"


def test_a_place_that_is_no_folder_is_refused_without_an_option_that_init_lacks(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()

    finished = call("init", str(tmp_path / "file"))

    assert finished.returncode == 2
    assert "--out" not in finished.stderr
    assert "`nox -s init -- FOLDER`" in finished.stderr
