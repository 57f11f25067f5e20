"""The scripts of the wheel builder: the nvcc shim, the record of objects."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from images.wheels.recipe import FOLDER
from tests.support.cases import cases
from tests.support.checkout import script

NVCC = script(FOLDER / "nvcc.py")
RECORD = script(FOLDER / "record.py")


TEN = [
    word
    for arch in (75, 80, 87, 90, 100, 120, 103, 110, 121)
    for word in ("-gencode", f"arch=compute_{arch},code=sm_{arch}")
]
"""What causal-conv1d 1.7.0 asks nvcc 13.0 for."""


SM90 = "arch=compute_90,code=sm_90"


@pytest.mark.parametrize(
    ("given", "archs", "ptx", "left"),
    [
        (TEN, [90], [], [SM90]),
        (TEN, [80, 90], [], ["arch=compute_80,code=sm_80", SM90]),
        (TEN, [86], [], ["arch=compute_80,code=sm_80"]),
        (["-gencode=arch=compute_90,code=[sm_90,compute_90]"], [90], [], [SM90]),
        (
            ["-gencode=arch=compute_90,code=compute_90"],
            [90],
            [90],
            ["arch=compute_90,code=compute_90", SM90],
        ),
        (["--generate-code", "arch=compute_90,code=sm_90"], [90], [], [SM90]),
        (
            ["--generate-code=arch=compute_90a,code=sm_90a"],
            [90],
            [],
            ["arch=compute_90a,code=sm_90a"],
        ),
        (
            ["-gencode=arch=compute_90a,code=sm_90a"],
            [90, 100],
            [],
            ["arch=compute_90a,code=sm_90a"],
        ),
        ([], [90], [], [SM90]),
        (
            [],
            [80, 90],
            [90],
            ["arch=compute_80,code=sm_80", SM90, "arch=compute_90,code=compute_90"],
        ),
        (["-arch=sm_75"], [90], [], [SM90]),
        (["-arch", "sm_90"], [90], [], [SM90]),
        (["-arch=native"], [90], [], [SM90]),
        (["--gpu-architecture=compute_80", "--gpu-code=sm_80"], [90], [], [SM90]),
        (
            ["-gencode", "arch=compute_53,code=sm_53", "-gencode", "arch=compute_70,code=sm_70"],
            [90],
            [],
            [SM90],
        ),
    ],
)
def test_the_shim_keeps_what_was_asked_for(
    given: list[str], archs: list[int], ptx: list[int], left: list[str]
) -> None:
    arguments, _ = NVCC.rewrite(["-c", "x.cu", *given, "-o", "x.o"], archs, ptx)
    assert arguments[:4] == ["-c", "x.cu", "-o", "x.o"]
    assert [word for word in arguments[4:] if word != "-gencode"] == left


def test_a_setup_that_asks_for_the_gpu_is_told_the_newest_arch(tmp_path: Path) -> None:
    (tmp_path / "torch" / "cuda").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "cuda" / "__init__.py").write_text(
        "def get_device_capability(): raise RuntimeError\n"
    )
    ask = "import torch.cuda; print(torch.cuda.get_device_capability())"
    env = {"PYTHONPATH": f"{FOLDER}:{tmp_path}", "TRUETAG_ARCHS": "80 120 90"}
    command = [sys.executable, "-B", "-c", ask]
    assert (
        subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()
        == "(12, 0)"
    )


CCACHE_LOG = cases(__file__, "ccache")


def test_objects_are_counted_by_where_they_came_from() -> None:
    assert RECORD.objects(CCACHE_LOG) == {"compiled": 1, "from_cache": 2, "not_cached": 1}
    assert RECORD.objects("") == {"compiled": 0, "from_cache": 0, "not_cached": 0}


@pytest.mark.parametrize(("given", "level", "passed"), cases(__file__, "host"))
def test_code_for_the_host_is_for_the_processors_asked_for(
    given: list[str], level: str, passed: list[str], tmp_path: Path
) -> None:
    """What a setup.py compiles for the processor at hand dies of SIGILL on older ones."""
    (tmp_path / "g++").write_text(
        "#!/bin/sh\nprintf '%s\\0' \"$PATH\"; for word; do printf '%s\\0' \"$word\"; done\n"
    )
    (tmp_path / "g++").chmod(stat.S_IRWXU)
    stand_in = tmp_path / "host" / "g++"
    stand_in.parent.mkdir()
    stand_in.write_bytes((FOLDER / "host.sh").read_bytes())
    stand_in.chmod(stat.S_IRWXU)
    for folders in (
        f"{stand_in.parent}:/usr/bin:/bin",
        f"/usr/bin:{stand_in.parent}:/bin",
        "/usr/bin:/bin",
    ):
        told = {"TRUETAG_CPU": level, "TRUETAG_CCACHE": str(tmp_path), "PATH": folders}
        done = subprocess.run(
            [stand_in, *given], env=told, capture_output=True, text=True, check=True
        )
        assert done.stdout.split("\0")[:-1] == ["/usr/bin:/bin", *passed], (
            "ccache would find the stand-in, and it ccache"
        )
