"""fleet.yaml: what it may say, and how every mistake is told."""

from pathlib import Path

import pytest

from images.errors import UserError
from images.fleet import config

GOOD = """\
staging: registry.test/images
workers:
  cpu: {slurm: {partition: cpu, minutes: 30}}
  h100: {arch: sm_90, gpus: 8, slurm: {partition: gpu, gres: "gpu:h100"}, ray: {accelerator_type: H100}}
  a100: {arch: "8.0", gpus: 1}
"""


def read(tmp_path: Path, text: str) -> config.Fleet:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    return config.read(file, tmp_path)


def test_machines_are_found_by_what_they_have(tmp_path: Path) -> None:
    fleet = read(tmp_path, GOOD)
    assert fleet.staging == "registry.test/images" and config.read(None, tmp_path) == fleet
    assert fleet.plain == "cpu" and fleet.workers["cpu"].slurm.minutes == 30
    assert {arch: name for arch, (name, _) in fleet.by_arch.items()} == {"9.0": "h100", "8.0": "a100"}


def test_a_fleet_of_gpu_machines_alone_judges_every_tier(tmp_path: Path) -> None:
    assert read(tmp_path, "workers: {h100: {arch: '9.0', gpus: 1}}").plain == "h100"


@pytest.mark.parametrize(
    ("old", "new", "where", "cause"),
    [
        ("minutes: 30", "minutes: 0", "fleet.yaml:3", "workers.cpu.slurm.minutes"),
        ("partition: cpu", "partitoin: cpu", "fleet.yaml:3", "unknown key 'workers.cpu.slurm.partitoin'"),
        ("arch: sm_90", "arch: hopper", "fleet.yaml:4", "is not a GPU architecture"),
        ("arch: sm_90, ", "", "fleet.yaml:4", "workers.h100: arch and gpus go together: `nvidia-smi"),
        (", gpus: 1}", "}", "fleet.yaml:5", "workers.a100: arch and gpus go together: say gpus: 1"),
        ('"gpu:h100"', '"gpu:h100:4"', "fleet.yaml:4", "workers.h100.slurm.gres"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_a_fix(tmp_path: Path, old: str, new: str, where: str, cause: str) -> None:
    assert old in GOOD
    with pytest.raises(UserError) as refused:
        read(tmp_path, GOOD.replace(old, new))
    (problem,) = refused.value.problems
    assert problem.where.endswith(where) and cause in problem.cause and problem.then


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path, "max_age_days: 0\nworkers: {a: {ranks: 1}, b: {arch: '9.0'}, c: {}}")
    assert len(refused.value.problems) == 3


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml: can't be read"):
        config.read(tmp_path / "nowhere.yaml", tmp_path)
