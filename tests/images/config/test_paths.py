"""Which folder a verb takes matrix, locks, results and out/ from."""

from pathlib import Path

import pytest

from images.config import paths
from images.errors import UserError


def test_a_given_matrix_goes_before_the_folders_and_the_folders_before_the_checkouts(
    tmp_path: Path,
) -> None:
    here, given = tmp_path / "here", tmp_path / "given"
    for folder in (here, given):
        folder.mkdir()
    assert paths.find(None, here).matrix == paths.RESOURCES / "matrix.yaml"
    (here / "matrix.yaml").touch()
    (given / "mine.yaml").touch()
    assert paths.find(None, here).matrix == here / "matrix.yaml"
    assert paths.find(given / "mine.yaml", here).matrix == given / "mine.yaml"
    assert paths.find(given / "mine.yaml", here).locks == given / "locks"
    with pytest.raises(UserError, match="is no file"):
        paths.find(tmp_path / "none.yaml", tmp_path)


def test_results_go_beside_the_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "matrix.yaml").touch()
    workspace = paths.find(tmp_path / "matrix.yaml", tmp_path)
    assert workspace.out == tmp_path / "out"
    assert paths.shown(paths.DATA / "facts.yaml") == "images/data/facts.yaml"
    monkeypatch.chdir(tmp_path)
    assert paths.shown(tmp_path / "locks" / "a") == "locks/a"
    assert workspace.out == Path("out"), "messages stay short where the user stands in it"
