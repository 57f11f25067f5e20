"""The folder from which a verb takes matrix, locks, results and out/."""

from pathlib import Path

import pytest

from images.config import paths
from images.errors import UserError


def test_without_a_matrix_anywhere_the_checkouts_is_taken(tmp_path: Path) -> None:
    assert paths.find(None, tmp_path).matrix == paths.RESOURCES / "matrix.yaml"


def test_the_matrix_of_the_folder_comes_before_the_checkouts(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").touch()

    assert paths.find(None, tmp_path).matrix == tmp_path / "matrix.yaml"


def test_a_matrix_that_is_named_comes_before_that_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    named = folder / "mine.yaml"
    named.touch()
    (tmp_path / "matrix.yaml").touch()

    workspace = paths.find(named, tmp_path)

    assert workspace.matrix == named
    assert workspace.locks == folder / "locks"


def test_a_matrix_that_is_named_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        paths.find(tmp_path / "none.yaml", tmp_path)


def test_results_go_beside_the_matrix(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").touch()

    assert paths.find(tmp_path / "matrix.yaml", tmp_path).out == tmp_path / "out"


def test_in_the_folder_of_the_matrix_paths_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matrix.yaml").touch()
    monkeypatch.chdir(tmp_path)

    assert paths.find(tmp_path / "matrix.yaml", tmp_path).out == Path("out")
    assert paths.shown(tmp_path / "locks" / "a") == "locks/a"


def test_a_path_in_the_checkout_is_shown_below_it() -> None:
    assert paths.shown(paths.DATA / "facts.yaml") == "images/data/facts.yaml"
