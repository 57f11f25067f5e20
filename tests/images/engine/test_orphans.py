"""Whose containers are swept: those of a process of this machine that has ended, and nobody else's."""

import os
import subprocess
import sys

from images.engine import OWNER_LABEL
from images.engine.containers import _is_orphan, labels_of


def owner_of_a_process_that_ended() -> str:
    program = "from images.engine.containers import labels_of, OWNER_LABEL; print(labels_of('x')[OWNER_LABEL])"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_a_living_process_keeps_its_containers() -> None:
    assert not _is_orphan(labels_of("run"))


def test_a_process_that_ended_leaves_orphans() -> None:
    assert _is_orphan({OWNER_LABEL: owner_of_a_process_that_ended()})


def test_a_later_process_of_the_same_number_is_another_one() -> None:
    mine = labels_of("run")[OWNER_LABEL]
    assert _is_orphan({OWNER_LABEL: f"{mine}1"})


def test_a_process_of_another_machine_is_not_ours_to_judge() -> None:
    """Two machines of one name may share an engine: the same number lives there, or may."""
    machine, rest = owner_of_a_process_that_ended().split(":", 1)
    host, boot = machine.split("/")
    assert not _is_orphan({OWNER_LABEL: f"{host}/another{boot}:{rest}"})
    assert not _is_orphan({OWNER_LABEL: f"another{host}/{boot}:{rest}"})
    assert not _is_orphan({}) and not _is_orphan({OWNER_LABEL: f"{machine}:{os.getpid()}x:"})
