"""Made-up matrices and locks."""

import dataclasses
from pathlib import Path

import pytest

from images.bench import synthetic
from images.config import matrix
from images.locking import lock_file
from images.planning import plan
from tests.support.bench import SOURCES


def test_a_synthetic_matrix_is_sound_accepted_and_as_large_as_asked(tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(synthetic.text(SOURCES, 300))
    planned = plan.check(matrix.load(file))
    own = sum(len(row.names()) for row in SOURCES.matrix.images)
    made = planned[own:]
    assert len(planned) == len({image.name for image in planned}) == 300
    assert all(image.accepted for image in made)
    assert len({image.image.lock_name for image in made if image.image}) == len(made)


def test_the_same_count_gives_the_same_matrix_and_keeps_the_order_of_layers(tmp_path: Path) -> None:
    assert synthetic.text(SOURCES, 60) == synthetic.text(SOURCES, 60)
    file = tmp_path / "matrix.yaml"
    file.write_text(synthetic.text(SOURCES, 60))
    assert list(matrix.load(file).matrix.layers) == list(SOURCES.matrix.layers)


def test_a_synthetic_lock_counts_as_present(tmp_path: Path) -> None:
    images = [image.image for image in plan.plan(SOURCES) if image.image][:3]
    lock_file.write(dict(synthetic.locks(images)), tmp_path)
    assert set(lock_file.states(images, tmp_path).values()) == {lock_file.Status.PRESENT}


def test_a_shared_lock_counts_for_each_image_by_what_it_asks(tmp_path: Path) -> None:
    parent, arch = (plan.select([name], SOURCES)[0].image for name in ("cu126-torch27", "cu126-torch27-sm90"))
    assert parent is not None and arch is not None
    lock_file.write(dict(synthetic.locks([parent])), tmp_path)
    moved = dataclasses.replace(arch, pins=arch.pins[1:])
    assert lock_file.states([parent, arch], tmp_path)["cu126-torch27-sm90"] is lock_file.Status.PRESENT
    assert lock_file.states([parent, moved], tmp_path)["cu126-torch27-sm90"] is lock_file.Status.STALE


def test_fewer_images_than_the_project_has_are_refused() -> None:
    with pytest.raises(ValueError, match="the project itself has"):
        synthetic.text(SOURCES, 3)
