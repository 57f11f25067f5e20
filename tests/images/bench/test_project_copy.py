"""The copy of the project in which images are built by the command line."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from images.bench import running
from images.bench.project_copy import ProjectCopy
from images.planning import plan
from tests.support.bench import SOURCES, Cache


@pytest.mark.parametrize(("changes", "gone"), [(True, ["old"]), (False, [])])
def test_an_image_that_lost_its_name_to_the_next_build_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: bool, gone: list[str]
) -> None:
    (planned,) = plan.select(["cu130-torch211"], SOURCES)
    assert planned.image is not None
    tags, removed = {"old": (planned.name,)}, list[str]()

    def find(wanted: str) -> SimpleNamespace | None:
        found = [key for key, names in tags.items() if wanted == key or wanted in names]
        return SimpleNamespace(id=found[0], tags=tags[found[0]]) if found else None

    def run(*_: object) -> None:
        if changes:
            tags.update(old=(), new=(planned.name,))

    bench = ProjectCopy(tmp_path, SimpleNamespace(find=find, remove=removed.append), tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr(ProjectCopy, "run", lambda _self, *arguments: run(*arguments))
    bench.build(planned.image)
    assert removed == gone


def test_nvidias_libraries_are_pruned_in_the_copy_alone(tmp_path: Path) -> None:
    project = ProjectCopy(tmp_path, Cache(), tmp_path / "out")  # type: ignore[arg-type]
    project.copy()
    before = project.sources().matrix
    changed = project.with_nvidia_pruned().sources().matrix
    assert not before.prune.nvidia and changed.prune.nvidia
    assert changed.model_copy(update={"prune": before.prune}) == before


def test_the_copy_keeps_its_bytecode_as_users_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, str]] = []
    monkeypatch.setattr(running, "run", lambda _command, *, env, **_: told.append(env))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("LANGUAGE", "kept")
    engine = SimpleNamespace(facts=SimpleNamespace(url="unix:///engine"))
    ProjectCopy(tmp_path, engine, tmp_path).run("plan")  # type: ignore[arg-type]
    assert "PYTHONDONTWRITEBYTECODE" not in told[0]
    assert (told[0]["DOCKER_HOST"], told[0]["LANGUAGE"]) == ("unix:///engine", "kept")
