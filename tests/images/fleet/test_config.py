"""fleet.yaml: what it may say, and how every mistake is told."""

from pathlib import Path

import pytest

from images.errors import UserError
from images.fleet import config

GOOD = """\
staging: registry.test/images
workers:
  cpu: {slurm: {partition: cpu, time: 30, exclusive: true}}
  h100: {gpus: 8, slurm: {partition: gpu, gres: "gpu:h100:8"}, ray: {accelerator_type: H100}}
"""


def read(tmp_path: Path, text: str) -> config.Fleet:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    return config.read(file, tmp_path)


def test_machines_are_named(tmp_path: Path) -> None:
    fleet = read(tmp_path, GOOD)
    assert fleet.staging == "registry.test/images" and config.read(None, tmp_path) == fleet
    name, machines = config.choose_machines(fleet, "h100")
    assert (name, machines.gpus, machines.ray.accelerator_type) == ("h100", 8, "H100")
    with pytest.raises(UserError, match=r"several kinds of machines[^`]*name one of cpu, h100"):
        config.choose_machines(fleet, "")
    with pytest.raises(UserError, match="--workers b200: is no kind"):
        config.choose_machines(fleet, "b200")


def test_without_a_file_machines_have_no_gpu(tmp_path: Path) -> None:
    assert config.choose_machines(config.read(None, tmp_path), "")[1].gpus == 0


@pytest.mark.parametrize(
    ("old", "new", "where", "cause"),
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
def test_a_mistake_is_told_with_its_line_and_a_fix(
    tmp_path: Path, old: str, new: str, where: str, cause: str
) -> None:
    assert old in GOOD
    with pytest.raises(UserError) as refused:
        read(tmp_path, GOOD.replace(old, new))
    (problem,) = refused.value.problems
    assert (
        problem.where.endswith(where) and cause in problem.cause and "docs/fleet.md" in problem.then
    )
