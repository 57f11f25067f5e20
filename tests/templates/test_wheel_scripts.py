"""The scripts of the wheel builder: the stand-ins for nvcc and gcc, and the record of objects."""

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


# --- nvcc.py --------------------------------------------------------------------------------------


def sm(arch: int) -> str:
    """Return nvcc's word for machine code."""
    return f"arch=compute_{arch},code=sm_{arch}"


def ptx_of(arch: int) -> str:
    """Return nvcc's word for PTX."""
    return f"arch=compute_{arch},code=compute_{arch}"


def gencode(*words: str) -> list[str]:
    """Return the arguments of nvcc with these words, each behind `-gencode`."""
    arguments = []
    for word in words:
        arguments += ["-gencode", word]
    return arguments


OF_CAUSAL_CONV1D = gencode(*map(sm, (75, 80, 87, 90, 100, 120, 103, 110, 121)))
"""What causal-conv1d 1.7.0 asks nvcc 13.0 for."""
SM90A = "arch=compute_90a,code=sm_90a"


@pytest.mark.parametrize(
    ("arguments", "archs", "ptx", "words"),
    [
        # What the setup.py asks for and the recipe has.
        (OF_CAUSAL_CONV1D, [90], [], [sm(90)]),
        (OF_CAUSAL_CONV1D, [80, 90], [], [sm(80), sm(90)]),
        # Code for an older GPU of the same major serves.
        (OF_CAUSAL_CONV1D, [86], [], [sm(80)]),
        # PTX only if the recipe has it.
        (["-gencode=arch=compute_90,code=[sm_90,compute_90]"], [90], [], [sm(90)]),
        ([f"-gencode={ptx_of(90)}"], [90], [90], [ptx_of(90), sm(90)]),
        # Other spellings of the option.
        (["--generate-code", sm(90)], [90], [], [sm(90)]),
        ([f"--generate-code={SM90A}"], [90], [], [SM90A]),
        # Code for exactly one GPU stays, and takes the place of that GPU's other code.
        ([f"-gencode={SM90A}"], [90, 100], [], [SM90A]),
        # A setup.py that asks for nothing, or for nothing that serves: all that the recipe has.
        ([], [90], [], [sm(90)]),
        ([], [80, 90], [90], [sm(80), sm(90), ptx_of(90)]),
        (["-arch=sm_75"], [90], [], [sm(90)]),
        (["-arch", "sm_90"], [90], [], [sm(90)]),
        (["-arch=native"], [90], [], [sm(90)]),
        (["--gpu-architecture=compute_80", "--gpu-code=sm_80"], [90], [], [sm(90)]),
        (gencode(sm(53), sm(70)), [90], [], [sm(90)]),
    ],
)
def test_nvcc_is_called_for_what_the_setup_asks_and_the_recipe_has(
    arguments: list[str], archs: list[int], ptx: list[int], words: list[str]
) -> None:
    rewritten, _ = NVCC.rewrite(["-c", "x.cu", *arguments, "-o", "x.o"], archs, ptx)

    assert rewritten[:4] == ["-c", "x.cu", "-o", "x.o"]
    assert rewritten[4:] == gencode(*words)


def test_a_setup_that_asks_for_the_gpu_gets_the_newest_architecture(tmp_path: Path) -> None:
    cuda = tmp_path / "torch" / "cuda"
    cuda.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("")
    (cuda / "__init__.py").write_text("def get_device_capability(): raise RuntimeError\n")
    code = "import torch.cuda; print(torch.cuda.get_device_capability())"
    environ = {"PYTHONPATH": f"{FOLDER}:{tmp_path}", "TRUETAG_ARCHS": "80 120 90"}

    command = [sys.executable, "-B", "-c", code]
    finished = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)

    assert finished.stdout.strip() == "(12, 0)"


# --- record.py ------------------------------------------------------------------------------------


def test_objects_are_counted_by_where_they_came_from() -> None:
    ccache_log = cases(__file__, "ccache")

    assert RECORD.objects(ccache_log) == {"compiled": 1, "from_cache": 2, "not_cached": 1}


def test_without_a_log_no_object_is_counted() -> None:
    assert RECORD.objects("") == {"compiled": 0, "from_cache": 0, "not_cached": 0}


# --- host.sh --------------------------------------------------------------------------------------


COMPILER_THAT_PRINTS_ITS_CALL = """\
#!/bin/sh
printf '%s\\0' "$PATH"
for word; do printf '%s\\0' "$word"; done
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """host.sh under the name g++, with a g++ that prints how it is called."""
    compiler = tmp_path / "g++"
    compiler.write_text(COMPILER_THAT_PRINTS_ITS_CALL)
    compiler.chmod(stat.S_IRWXU)
    host_script = tmp_path / "host" / "g++"
    host_script.parent.mkdir()
    host_script.write_bytes((FOLDER / "host.sh").read_bytes())
    host_script.chmod(stat.S_IRWXU)
    return host_script


def call_of_compiler(stand_in: Path, arguments: list[str], level: str, path: str) -> list[str]:
    """Return PATH and the arguments with which the stand-in calls the compiler."""
    environ = {"TRUETAG_CPU": level, "TRUETAG_CCACHE": str(stand_in.parents[1]), "PATH": path}
    finished = subprocess.run(
        [stand_in, *arguments], env=environ, capture_output=True, text=True, check=True
    )
    return finished.stdout.split("\0")[:-1]


@pytest.mark.parametrize(("arguments", "level", "passed"), cases(__file__, "host"))
def test_host_code_is_compiled_for_the_level_of_processors_of_the_recipe(
    stand_in: Path, arguments: list[str], level: str, passed: list[str]
) -> None:
    """Code that a setup.py compiles for the processor at hand ends with SIGILL on older ones."""
    call = call_of_compiler(stand_in, arguments, level, "/usr/bin:/bin")

    assert call == ["/usr/bin:/bin", *passed]


@pytest.mark.parametrize(
    "path", ["{folder}:/usr/bin:/bin", "/usr/bin:{folder}:/bin"], ids=["first", "in the middle"]
)
def test_the_stand_in_takes_itself_out_of_path(stand_in: Path, path: str) -> None:
    """Otherwise ccache would find the stand-in as the compiler, and the stand-in ccache."""
    with_stand_in = path.format(folder=stand_in.parent)

    for arguments, level, passed in cases(__file__, "host"):
        call = call_of_compiler(stand_in, arguments, level, with_stand_in)
        assert call == ["/usr/bin:/bin", *passed]
