"""What an image gives to whoever adds packages: its constraints, and an environment over its own that needs no root."""

import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from images.config.paths import CHECKOUT, TEMPLATES
from images.context import render
from images.locking import lock_file
from images.planning import user_overlay
from tests.support.cases import cases
from tests.support.sources import image

BASE: Any = types.SimpleNamespace(executable="/opt/venv/bin/python")
CREATE = TEMPLATES / "additions" / "create.py"


def constraints(name: str, *missing: str) -> dict[str, str]:
    wanted = image(name)
    text = render.constraints(
        wanted, lock_file.read(wanted, CHECKOUT.locks).files, missing
    ).decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def test_torch_cuda_and_all_that_has_kernels_are_held_as_locked() -> None:
    found = constraints("cu126-torch27")
    assert (
        found["torch"] == "2.7.1"
        and found["triton"] == "3.3.1"
        and found["nvidia-nccl-cu12"] == "2.26.2"
    )
    assert {"xformers", "flash-attn", "bitsandbytes", "torchao", "liger-kernel"} <= found.keys()
    assert not {"transformers", "numpy", "setuptools", "nvidia-ml-py"} & found.keys(), (
        "these may move"
    )
    assert "flash-attn" not in constraints("cu126-torch27", "flash-attn"), (
        "the image goes without it"
    )
    assert found["vllm"] == "0.10.0", "of releases built for this torch, pip looks at no other"
    assert "vllm" not in constraints("cu132-torch215"), "none is known to fit"


def test_another_lock_has_another_environment() -> None:
    wanted = image("cu126-torch27")
    locks = dict(lock_file.read(wanted, CHECKOUT.locks).files)
    before = render.overlay_key(wanted, locks)
    assert render.overlay_key(wanted, locks) == before
    locks["light.txt"] += b"x==1\n"
    assert render.overlay_key(wanted, locks) != before


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of additions, over one that stands in for the image's."""
    folder = tmp_path_factory.mktemp("additions")
    own = folder / "image"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", own], check=True)
    (packages,) = own.glob("lib/python*/site-packages")
    (packages / "frozen.py").write_text("origin = 'image'\n")
    (packages / "frozen-1.dist-info").mkdir()
    (packages / "frozen-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: frozen\nVersion: 1\n"
    )
    (packages / "frozen-1.dist-info" / "RECORD").write_text("frozen.py,,\n")
    (own / "bin" / "train").write_text(f"#!{own}/bin/python\nimport sys\nprint(sys.prefix)\n")
    (own / "bin" / "train").chmod(0o755)
    target = folder / "cache" / "venvs" / "a-1"
    subprocess.run([own / "bin" / "python", "-I", "-B", CREATE, target], check=True)
    return target


def ask(made: Path, code: str) -> str:
    return subprocess.run(
        [made / "bin" / "python", "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_additions_see_the_images_packages_and_count_them_as_their_own(made: Path) -> None:
    assert ask(made, "import frozen; print(frozen.origin)") == "image\n"
    where = ask(
        made, "import importlib.metadata as m; print(m.distribution('frozen').locate_file(''))"
    )
    assert Path(where.strip()).resolve().is_relative_to(made)
    (packages,) = made.glob("lib/python*/site-packages")
    (packages / "frozen.py").write_text("origin = 'added'\n")
    assert ask(made, "import frozen; print(frozen.origin)") == "added\n", (
        "what is added comes first"
    )
    (packages / "frozen.py").unlink()


def test_the_images_commands_start_with_the_interpreter_that_sees_additions(made: Path) -> None:
    said = subprocess.run(
        [made / "bin" / "train"], check=True, capture_output=True, text=True
    ).stdout
    assert said.strip() == str(made)


def create(target: Path) -> str:
    """What create.py says where it fails."""
    done = subprocess.run(
        [sys.executable, "-I", "-B", CREATE, target], capture_output=True, text=True
    )
    assert done.returncode == 1
    return done.stderr


def test_who_may_not_write_is_told_what_to_do(made: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    said = create(tmp_path / "cache" / "venvs" / "a-1")
    for way in ("-v truetag-cache:", "--user $(id -u):$(id -g)", "install -d -m 1777", "--tmpfs"):
        assert way in said
    assert f"belongs to uid {os.geteuid()}" in create(made), (
        "another's is left alone: python.sh asks for a new one"
    )


_PIP = """
import os, pathlib, sys
print(*sys.argv[1:])
_CONFLICT = "ERROR: ResolutionImpossible: "
said = {"vllm>=1": _CONFLICT, "Flash_Attn": "no nvcc", "uses-ao": _CONFLICT + "requested (constraint) torchao==0"}
said["a"] = "CERTIFICATE_VERIFY_FAILED"
for one in set(sys.argv) & set(said):
    pathlib.Path(os.environ["PIP_LOG"]).write_text(said[one])
    sys.exit(3)
"""
"""Fails as pip does: the cause is in its log."""


@pytest.fixture
def interpreter(made: Path, tmp_path: Path) -> Path:
    """python.sh with what the last stage puts beside it."""
    shutil.copy(TEMPLATES / "additions" / "python.sh", tmp_path / "python")
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "settings").write_text(
        f"home=/\nimage_python={made}/bin/python\nadditions={made}\n"
    )
    (packages,) = made.glob("lib/python*/site-packages")
    for name, version in (
        ("transformers", "5.5.4"),
        ("datasets", "4.5.0"),
    ):  # a child may have other releases than its parent
        (packages / f"{name}-{version}.dist-info").mkdir(exist_ok=True)
        (packages / f"{name}-{version}.dist-info" / "METADATA").write_text(
            f"Name: {name}\nVersion: {version}\n"
        )
    (tmp_path / "hints").write_bytes(
        render.overlay_files(image("cu126-torch25"), BASE, {}, ())["additions/hints"]
    )
    (tmp_path / "pip.py").write_text(_PIP)
    return tmp_path / "python"


@pytest.mark.parametrize(("arguments", "told"), cases(__file__, "refused"))
def test_who_is_refused_a_package_is_told_what_to_take(
    interpreter: Path, arguments: list[str], told: list[str]
) -> None:
    pip = interpreter.with_name("pip.py")
    done = subprocess.run([interpreter, pip, "install", *arguments], capture_output=True, text=True)
    assert done.returncode == (3 if told else 0)
    lines = done.stderr.splitlines()
    assert len(lines) == len(told) and all(
        text in line for text, line in zip(told, lines, strict=True)
    ), lines


@pytest.mark.parametrize(("arguments", "kept"), cases(__file__, "installed"))
def test_transformers_is_asked_for_beside_what_is_installed(
    interpreter: Path, tmp_path: Path, arguments: list[str], kept: bool
) -> None:
    (tmp_path / "plain.txt").write_text("gradio\n")
    (tmp_path / "hashed.txt").write_text("gradio==1 \\\n    --hash=sha256:0\n")
    command = [interpreter, interpreter.with_name("pip.py"), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == [
        *arguments,
        *(["transformers==5.5.4", "datasets==4.5.0"] if kept else []),
    ]


def test_what_is_kept_moves_where_nothing_else_fits(interpreter: Path) -> None:
    pip = interpreter.with_name("pip.py")
    pip.write_text(
        "import os, sys; print(*sys.argv[1:])\n"
        "kept = any('==' in one for one in sys.argv)\n"
        "open(os.environ['PIP_LOG'], 'w').write('ERROR: ResolutionImpossible' if kept else '')\n"
        "sys.exit(kept)\n"
    )
    done = subprocess.run([interpreter, pip, "install", "new"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "install new transformers datasets"
    assert (
        done.stderr
        == "truetag: no release fits transformers==5.5.4 datasets==4.5.0: they may have moved\n"
    )


def test_who_gets_an_older_release_than_the_newest_is_told(interpreter: Path) -> None:
    pip = interpreter.with_name("pip.py")
    pip.write_text(
        "import os; open(os.environ['PIP_LOG'], 'w').write('pip is looking at multiple versions of new to')"
    )
    done = subprocess.run(
        [interpreter, pip, "install", "other", "New"], capture_output=True, text=True
    )
    (told,) = done.stderr.splitlines()
    assert (
        done.returncode == 0
        and "new: an older release was taken, which fits transformers==5.5.4" in told
    )


def test_an_image_without_transformers_asks_for_nothing_more(interpreter: Path, made: Path) -> None:
    for folder in made.glob("lib/python*/site-packages/*-*.dist-info"):
        shutil.rmtree(folder)
    command = [interpreter, interpreter.with_name("pip.py"), "install", "x"]
    assert (
        subprocess.run(command, check=True, capture_output=True, text=True).stdout == "install x\n"
    )


def test_what_has_no_release_for_this_torch_is_refused() -> None:
    assert constraints("cu126-torch25")["torchao"] == user_overlay.NO_FITTING_RELEASE
    assert constraints("cu130-torch211")["xformers"] == user_overlay.NO_FITTING_RELEASE, (
        "it is built for CUDA 12 alone"
    )
    assert "xformers" not in image("cu126-torch211").unfit, "one fits: it is left to pip"
