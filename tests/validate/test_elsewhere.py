"""Each option of `docker run` that we propose comes with what serves where there is no Docker."""

import re
from dataclasses import fields

import pytest

from tests.support.commands import call
from validate import elsewhere, hints
from validate.elsewhere import REPLACEMENTS

OPTIONS_OF_DOCKER_RUN = re.compile(
    r"(?<![\w-])--(?:gpus|shm-size|ipc|ulimit|cap-add|network|net|device|memory|pids-limit|"
    r"security-opt|user|group-add|volume|tmpfs|env|publish|privileged|pid|runtime|mount|cpus|"
    r"read-only|userns|init)\b(?:[ =][^\s`,;)]+)?"
)
"""Options of `docker run` (docs.docker.com/reference/cli/docker/container/run), with their value.
"""
OF_OTHER_PROGRAMS = ("--runtime=docker", "--user start")
"""Options of the same name: of `nvidia-ctk runtime configure`, and of `systemctl --user start`."""
LAUNCHERS = ("Kubernetes: ", "Slurm with pyxis: ", "Apptainer: ", "Podman: ")


def test_each_option_of_docker_in_a_fix_says_what_serves_elsewhere() -> None:
    silent = []
    for hint in hints.known():
        for option in OPTIONS_OF_DOCKER_RUN.findall(hint.fix):
            is_known = any(replacement.is_in(option) for replacement in REPLACEMENTS)
            if not is_known and option not in OF_OTHER_PROGRAMS:
                silent.append((hint.id, option))

    assert silent == []


@pytest.mark.parametrize("replacement", REPLACEMENTS, ids=lambda replacement: replacement.option)
def test_each_replacement_names_every_launcher_in_one_sentence(
    replacement: elsewhere.Replacement,
) -> None:
    for field in fields(replacement):
        assert getattr(replacement, field.name), field.name

    sentence = str(replacement)

    assert all(launcher in sentence for launcher in LAUNCHERS)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("start it with `--ipc=host` or `--shm-size=8g`", ["--shm-size, --ipc=host"]),
        ("`--gpus all`; `-e HF_TOKEN`", ["--gpus", "-e"]),
        ("`-p 8889:8888` and `-v cache:/home/trainer/.cache`", ["-v", "-p"]),
        ("`--device nvidia.com/gpu=all`", ["--gpus"]),
        ("`--ulimit memlock=-1 --device /dev/infiniband`", ["--ulimit", "--device"]),
        ("`pip install -e .`, `torchrun -v`, `nvidia-ctk runtime configure --runtime=docker`", []),
        ("`srun --gpus-per-node=8` of Slurm, `--max-memory`", []),
    ],
)
def test_options_are_found_in_a_text(text: str, options: list[str]) -> None:
    found = [replacement.option for replacement in REPLACEMENTS if replacement.is_in(text)]

    assert found == options


def test_hint_shows_what_serves_where_there_is_no_docker() -> None:
    done = call("hint", "DataLoader worker (pid 42) is killed by signal: Bus error.")

    assert "--shm-size=8g" in done.stdout
    assert all(launcher in done.stdout for launcher in LAUNCHERS)
