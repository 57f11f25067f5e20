"""fleet.yaml: which machines it names, and how a mistake in it is reported."""

from pathlib import Path

import pytest

from images.errors import UserError
from images.fleet import config

FLEET_FILE = """\
staging: registry.test/images
workers:
  cpu: {slurm: {partition: cpu, time: 30, exclusive: true}}
  h100: {gpus: 8, slurm: {partition: gpu, gres: "gpu:h100:8"}, ray: {accelerator_type: H100}}
"""


def read(folder: Path, text: str = FLEET_FILE) -> config.Fleet:
    """Write a fleet.yaml to a folder and read it."""
    file = folder / "fleet.yaml"
    file.write_text(text)
    return config.read(file, folder)


def test_fleet_yaml_is_read_also_if_no_file_is_named(tmp_path: Path) -> None:
    fleet = read(tmp_path)

    assert fleet.staging == "registry.test/images"
    assert config.read(None, tmp_path) == fleet


def test_machines_are_chosen_by_name(tmp_path: Path) -> None:
    name, machines = config.choose_machines(read(tmp_path), "h100")

    assert name == "h100"
    assert machines.gpus == 8
    assert machines.ray.accelerator_type == "H100"


def test_a_name_is_needed_if_there_are_several_kinds_of_machines(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"several kinds of machines[^`]*give --workers one of cpu, h100"
    ):
        config.choose_machines(read(tmp_path), "")


def test_an_unknown_kind_of_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--workers b200: `workers` in fleet\.yaml has no such"):
        config.choose_machines(read(tmp_path), "b200")


def test_without_a_file_machines_have_no_gpu(tmp_path: Path) -> None:
    _, machines = config.choose_machines(config.read(None, tmp_path), "")

    assert machines.gpus == 0


@pytest.mark.parametrize(
    ("old", "new", "line", "cause"),
    [
        ("gpus: 8", "gpus: -1", "fleet.yaml:4", "workers.h100.gpus"),
        ("gpus: 8", "ranks: 8", "fleet.yaml:4", "unknown key 'workers.h100.ranks'"),
        ("staging", "stagign", "fleet.yaml:1", "unknown key 'stagign'"),
        (
            "accelerator_type",
            "accelerator",
            "fleet.yaml:4",
            "unknown key 'workers.h100.ray.accelerator'",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_a_page(
    tmp_path: Path, old: str, new: str, line: str, cause: str
) -> None:
    assert old in FLEET_FILE

    with pytest.raises(UserError) as raised:
        read(tmp_path, FLEET_FILE.replace(old, new))

    (problem,) = raised.value.problems
    assert problem.where.endswith(line)
    assert cause in problem.cause
    assert "docs/fleet.md" in problem.then
