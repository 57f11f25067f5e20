"""What is read in a custom base, and whether images can be built on it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from images.config import matrix
from images.config.names import Minor
from images.config.paths import TEMPLATES
from images.errors import UserError
from images.locking.inputs import lock_inputs
from images.planning import custom_base, plan
from images.planning.custom_base import find_obstacles, parse_facts
from tests.support.custom_bases import BASE, FACTS, facts
from tests.support.sources import SOURCES


def obstacles(**differences: object) -> str:
    return "; ".join(find_obstacles(BASE, facts(**differences)))


def test_the_program_that_reads_a_base_describes_this_machine() -> None:
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    program = (TEMPLATES / "base" / "read_base.sh").read_text()

    finished = subprocess.run(
        ["sh", "-c", program, "sh", python, "0"], capture_output=True, text=True, check=True
    )

    read = parse_facts(finished.stdout)
    assert read.glibc and read.glibc > Minor(2, 17)
    assert Path(read.python).is_absolute()
    assert read.python_version.startswith(f"{python}.")
    assert "bash" not in read.missing
    assert str(read.glibc) in str(read) and read.python in str(read)


def test_what_was_printed_in_a_base_becomes_facts() -> None:
    text = (
        "os=Debian GNU/Linux 12 (bookworm)\nglibc=2.36\napt=/usr/bin/apt-get\nmissing=gcc\n"
        "missing=GNU find\npython=/opt/python/bin/python3.11\npython_version=3.11.7\n"
    )

    assert parse_facts(text) == facts(missing=("gcc", "GNU find"))


def test_a_base_without_python_and_glibc_is_read() -> None:
    read = parse_facts("glibc=\napt=\n")

    assert (read.glibc, read.python, read.has_apt) == (None, "", False)
    assert "no Python" in str(read)


def test_a_base_that_has_everything_is_accepted() -> None:
    assert list(find_obstacles(BASE, FACTS)) == []


@pytest.mark.parametrize(
    "differences",
    [
        {"python": "", "python_version": ""},
        {"missing": ("gcc", "g++")},
        {"python": "/usr/bin/python3.11", "missing": ("Python.h", "venv", "module ctypes")},
        {"glibc": BASE.glibc},
    ],
    ids=["no Python", "no compilers", "python3-minimal", "the oldest glibc"],
)
def test_what_apt_can_install_is_no_obstacle(differences: dict[str, object]) -> None:
    assert obstacles(**differences) == ""


@pytest.mark.parametrize(
    ("differences", "reason"),
    [
        ({"glibc": None}, "it has no glibc"),
        ({"glibc": Minor(2, 31)}, "it has glibc 2.31, and the wheels are locked for 2.34"),
        ({"python_version": "3.13.1"}, "it has Python 3.13.1, and the image needs 3.11"),
        ({"missing": ("useradd",)}, "it lacks useradd"),
        ({"missing": ("Python.h",)}, "it lacks Python.h; apt-get has these parts for the system's"),
        ({"missing": ("module lzma",)}, "it lacks module lzma; apt-get has these parts for the"),
        ({"has_apt": False, "missing": ("gcc", "Python.h")}, "it lacks gcc, Python.h; it has no"),
        ({"has_apt": False, "python": "", "python_version": ""}, "it lacks Python 3.11; it has no"),
    ],
)
def test_what_only_the_base_can_bring_is_an_obstacle(
    differences: dict[str, object], reason: str
) -> None:
    assert reason in obstacles(**differences)


def test_every_name_that_apt_can_install_is_one_that_the_program_prints() -> None:
    program = (TEMPLATES / "base" / "read_base.sh").read_text()
    looked_for = re.findall(r"missing=(\S+)\"", program)
    (programs,) = re.findall(r"for program in (.*); do", program)
    (modules,) = re.findall(r"for name in \((.*)\):", program)
    names_of_modules = re.findall(r"\w+", modules)

    assert set(custom_base._COMPILERS) <= set(programs.split())
    assert set(custom_base.MODULES) == set(names_of_modules)
    assert {"Python.h", "venv"} <= set(looked_for)


# --- in matrix.yaml -------------------------------------------------------------------------------


def load_with_base(folder: Path, row: str) -> matrix.Sources:
    """Load the matrix of this project with one more base, which is the default."""
    text = SOURCES.workspace.matrix.read_text()
    text = text.replace("  base: bookworm\n", "  base: mine\n")
    text = text.replace("\nbases:\n", f"\nbases:\n  mine: {row}\n")
    (folder / "matrix.yaml").write_text(text)
    return matrix.load(folder / "matrix.yaml")


def test_a_matrix_takes_any_base_by_reference(tmp_path: Path) -> None:
    row = '{reference: "registry.example/mine:1", python: "3.11", glibc: "2.34", custom: true}'

    (planned,) = plan.select(["cu126-torch27"], load_with_base(tmp_path, row))

    assert planned.image
    assert planned.image.base == BASE


@pytest.mark.parametrize(
    ("keys", "cause"),
    [
        ("gcc: 12, suite: bookworm, custom: true", "from which no `custom` base is made"),
        ("suite: bookworm", "needs `gcc`, or `custom: true`"),
    ],
)
def test_a_base_is_either_known_or_custom(tmp_path: Path, keys: str, cause: str) -> None:
    row = f'{{reference: "registry.example/mine:1", python: "3.11", glibc: "2.34", {keys}}}'

    with pytest.raises(UserError, match=cause):
        load_with_base(tmp_path, row)


@pytest.mark.parametrize("glibc", ["2.27", "2.5", "3.1"])
def test_a_glibc_for_which_nothing_can_be_locked_is_refused_with_the_range(
    tmp_path: Path, glibc: str
) -> None:
    row = f'{{reference: "mine:1", python: "3.11", glibc: "{glibc}", custom: true}}'

    with pytest.raises(UserError, match=r"it must be 2\.28 or a newer 2\.x") as error:
        load_with_base(tmp_path, row)

    (problem,) = error.value.problems
    assert re.search(r"matrix\.yaml:\d+$", problem.where)
    assert problem.cause.startswith(f"bases.mine.glibc: {glibc} ")


@pytest.mark.parametrize(
    ("glibc", "expected"),
    [("2.28", "2_28"), ("2.30", "2_28"), ("2.31", "2_31"), ("2.40", "2_40"), ("2.99", "2_40")],
)
def test_packages_are_locked_for_the_newest_platform_of_uv_that_the_base_can_run(
    tmp_path: Path, glibc: str, expected: str
) -> None:
    row = f'{{reference: "mine:1", python: "3.11", glibc: "{glibc}", custom: true}}'
    (planned,) = plan.select(["cu126-torch27"], load_with_base(tmp_path, row))
    assert planned.image

    platform = lock_inputs(planned.image).platform

    assert platform == f"x86_64-manylinux_{expected}"
    # uv refuses a platform that it does not know by name.
    command = [find_uv_bin(), "pip", "compile", "-", "--no-config", "--python-platform", platform]
    finished = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
