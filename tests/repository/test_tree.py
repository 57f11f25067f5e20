"""What must never lie in the repository, that its Dockerfiles are clean, and what it owes to those who come to it."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from images.config.paths import CHECKOUT
from images.context import render
from images.context.labels import BaseContext
from images.locking import lock_file
from images.planning import plan
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES
from tools.relock import LOCKS
from validate import inside

TRACKED = [
    ROOT / line
    for line in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
]
# Spelled in pieces, so that this file does not hold what it forbids.
FORBIDDEN = [
    "pypi" + r"\.org",
    "files\\.python" + "hosted",
    "deb\\.deb" + "ian\\.org",
    "security\\.deb" + "ian\\.org",
    "/opt/py" + "pi",
    "/work/" + "main",
    "BEGIN [A-Z ]*PRIVATE" + " KEY",
]
LOCKED = [
    planned.image for planned in plan.plan(SOURCES) if planned.image and planned.image.index is None
]


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_index_host_no_path_of_a_machine_no_secret(pattern: str) -> None:
    found = [
        path
        for path in TRACKED
        if path.is_file() and re.search(pattern, path.read_text(errors="replace"))
    ]
    assert not found


def test_no_large_file() -> None:
    assert [path for path in TRACKED if path.is_file() and path.stat().st_size > 1_000_000] == []


@pytest.mark.parametrize(
    ("top", "word"),
    [("validate", "(from|import) docker|assert"), ("images", "(from|import) torch")],
)
def test_nothing_in_validate_imports_docker_or_asserts_and_nothing_in_images_imports_torch(
    top: str, word: str
) -> None:
    for path in (ROOT / top).rglob("*.py"):
        assert not re.search(rf"^\s*({word})\b", path.read_text(), re.MULTILINE), path


@pytest.mark.parametrize("image", LOCKED, ids=lambda image: str(image.name))
def test_rendered_dockerfiles_pass_hadolint(image: plan.Image, tmp_path: Path) -> None:
    base_context = BaseContext(reference=image.base.reference, origin="tag")
    dockerfile = render.render(
        image,
        lock_file.read(image, CHECKOUT.locks).files,
        base_context,
        suite={"claims.json": b"{}"},
    )["Dockerfile"]
    file = tmp_path / "Dockerfile"
    assert isinstance(dockerfile, bytes)
    file.write_bytes(dockerfile)
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([str(hadolint), str(file)], capture_output=True, text=True, check=False)
    assert found.returncode == 0 and not found.stdout, found.stdout + found.stderr


@pytest.mark.parametrize(
    "script", sorted((ROOT / "templates").rglob("*.sh")), ids=lambda path: path.name
)
def test_scripts_are_posix_shell(script: Path) -> None:
    subprocess.run(["sh", "-n", str(script)], check=True)
    assert not re.search(r"\[\[(?!:)|<<|function |local ", script.read_text()), (
        "no bashisms, no here-documents"
    )


FOLDER = ROOT / ".github"


def test_dependabot_looks_where_something_is() -> None:
    known = {"pip": "pyproject.toml", "github-actions": ".github/workflows", "npm": "package.json"}
    config = yaml.safe_load((FOLDER / "dependabot.yml").read_text())
    assert config["version"] == 2
    for update in config["updates"]:
        assert update["schedule"]["interval"] in ("daily", "weekly", "monthly")
        assert (
            ROOT / update["directory"].lstrip("/") / known[update["package-ecosystem"]]
        ).exists()


def test_hooks_run_commands_that_exist() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    for hook in (hook for repository in config["repos"] for hook in repository["hooks"]):
        assert {"id", "name", "entry", "language"} <= set(hook)
        program, *arguments = shlex.split(hook["entry"])
        assert shutil.which(program, path=str(Path(sys.executable).parent))
        if arguments[:1] == ["-m"]:
            assert find_spec(arguments[1])


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_what_the_project_asks_for(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==([\w.!+]+)", text, re.MULTILINE))
    asked = [
        *PROJECT["dependencies"],
        *(one for extra in LOCKS[name] for one in PROJECT["optional-dependencies"][extra]),
    ]
    for requirement in map(Requirement, asked):
        version = locked.get(canonicalize_name(requirement.name), "")
        assert version and requirement.specifier.contains(version), (
            f"{requirement}: `python -m tools.relock`"
        )


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_is_held_by_a_hash_and_names_no_place(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    pinned = [block for block in re.split(r"\n(?=\S)", text) if "==" in block]
    assert pinned and all("--hash=sha256:" in block for block in pinned)
    assert not re.search(
        r"https?://|file:|--(extra-)?index|--find-links|/", text.partition("\n")[2]
    )


MANIFEST: dict[str, Any] = yaml.safe_load(
    (ROOT / "examples" / "kubernetes" / "validate-job.yaml").read_text()
)


@pytest.mark.parametrize("version", ["1.27", "1.30", "1.33", kubernetes_validate.latest_version()])
def test_the_manifest_is_what_the_schemas_take(version: str) -> None:
    kubernetes_validate.validate(MANIFEST, version, strict=True)


def test_the_container_runs_the_images_own_validate_on_a_gpu() -> None:
    (container,) = MANIFEST["spec"]["template"]["spec"]["containers"]
    program, *arguments = container["command"]
    assert program == "validate" and inside._parser().parse_args(arguments).tier == [
        "static",
        "cpu",
        "gpu",
    ]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
