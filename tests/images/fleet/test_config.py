"""fleet.yaml: what it may say, and how every mistake is told."""

from pathlib import Path

import pytest

from images.errors import UserError
from images.fleet import config

GOOD = """\
through: registry.test/images
workers:
  cpu: {slurm: {partition: cpu, minutes: 30}, kubernetes: {memory: 4Gi, tolerate: [spot]}}
  h100: {arch: sm_90, gpus: 8, slurm: {partition: gpu, gres: "gpu:h100"}, ray: {accelerator_type: H100},
    kubernetes: {node_labels: {nvidia.com/gpu.product: NVIDIA-H100}, gpu_resource: nvidia.com/gpu,
      pull_secret: registry}}
  a100: {arch: "8.0", gpus: 1}
"""


def read(tmp_path: Path, text: str) -> config.Fleet:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    return config.read(file)


def test_machines_are_found_by_what_they_have(tmp_path: Path) -> None:
    fleet = read(tmp_path, GOOD)
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
        ("arch: sm_90, ", "", "fleet.yaml:4", "h100 has gpus and no arch"),
        (", gpus: 1}", "}", "fleet.yaml:7", "a100 has arch 8.0 and no gpus"),
        ('"gpu:h100"', '"gpu:h100:4"', "fleet.yaml:4", "workers.h100.slurm.gres"),
        ("4Gi", "4GiB", "fleet.yaml:3", "workers.cpu.kubernetes.memory"),
        ("[spot]", "['spot=yes:NoSchedule']", "fleet.yaml:3", "workers.cpu.kubernetes.tolerate"),
        ("[spot]", "[example.com/a/b]", "fleet.yaml:3", "workers.cpu.kubernetes.tolerate"),
        ("memory: 4Gi", "cpus: 4, cpu_limit: 2", "fleet.yaml:3", "cpu asks for 4 cpus, and may use 2"),
        ("memory: 4Gi", "ephemeral_storage: 20GB", "fleet.yaml:3", "workers.cpu.kubernetes.ephemeral_storage"),
        ("memory: 4Gi", "wait_hours: 0", "fleet.yaml:3", "workers.cpu.kubernetes.wait_hours"),
        ("gpu.product", "gpu product", "fleet.yaml:5", "workers.h100.kubernetes.node_labels"),
        ("NVIDIA-H100", "'NVIDIA H100'", "fleet.yaml:5", "workers.h100.kubernetes.node_labels.nvidia.com/gpu.product"),
        ("NVIDIA-H100", "-H100", "fleet.yaml:5", "workers.h100.kubernetes.node_labels.nvidia.com/gpu.product"),
        ("nvidia.com/gpu.product: NVIDIA-H100", "kubernetes.io/arch: amd64", "fleet.yaml:5", "follows from `platform`"),
        ("gpu_resource: nvidia.com/gpu", "gpu_resource: gpu", "fleet.yaml:5", "workers.h100.kubernetes.gpu_resource"),
        ("pull_secret: registry", "pull_secret: My_Registry", "fleet.yaml:6", "workers.h100.kubernetes.pull_secret"),
        ("pull_secret: registry", "runtime_class: nvidia_x", "fleet.yaml:6", "workers.h100.kubernetes.runtime_class"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_to_do(
    tmp_path: Path, old: str, new: str, where: str, cause: str
) -> None:
    assert old in GOOD
    with pytest.raises(UserError) as refused:
        read(tmp_path, GOOD.replace(old, new))
    (problem,) = refused.value.problems
    assert problem.where.endswith(where) and cause in problem.cause and problem.then


def test_quantities_of_memory_are_those_of_kubernetes() -> None:
    found = {text: config.memory_bytes(text) for text in ("512Mi", "1.5Gi", "2G", "64k", "1024")}
    assert list(found.values()) == [512 << 20, 3 << 29, 2e9, 64e3, 1024]


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path, "max_age_days: 0\nworkers: {a: {ranks: 1}, b: {arch: '9.0'}, c: {}}")
    assert len(refused.value.problems) == 2
    with pytest.raises(UserError) as refused:
        read(tmp_path, "workers: {a: {gpus: 1}, b: {arch: '9.0'}}")
    assert len(refused.value.problems) == 2


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml: can't be read"):
        config.read(tmp_path / "nowhere.yaml")


def test_labels_and_names_are_those_that_kubernetes_takes(tmp_path: Path) -> None:
    """Keys without a domain, empty values, the longest name, and resources of a part of a GPU."""
    word = "a" * 63
    asked = f"{{node_labels: {{gpu: '', {word}: {word}}}, gpu_resource: nvidia.com/mig-1g.10gb, pull_secret: my.one-1}}"
    found = read(tmp_path, f"workers: {{a: {{kubernetes: {asked}}}}}").workers["a"].kubernetes
    assert found.node_labels == {"gpu": "", word: word} and found.gpu_resource == "nvidia.com/mig-1g.10gb"
    with pytest.raises(UserError):
        read(tmp_path, f"workers: {{a: {{kubernetes: {{node_labels: {{gpu: {word}a}}}}}}}}")
