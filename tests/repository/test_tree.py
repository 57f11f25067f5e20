"""What must never lie in the repository, and what must hold for files that others run or install.

These are Dockerfiles, scripts, hooks, locks of our own environments, and the manifest of a Job.
"""

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

LISTING = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True)
PATHS = [ROOT / line for line in LISTING.splitlines()]
TRACKED = [path for path in PATHS if path.is_file()]
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
    forbidden = re.compile(pattern)

    assert not [path for path in TRACKED if forbidden.search(path.read_text(errors="replace"))]


def test_no_large_file() -> None:
    assert [path for path in TRACKED if path.stat().st_size > 1_000_000] == []


@pytest.mark.parametrize(
    ("top", "forbidden"),
    [("validate", "(from|import) docker|assert"), ("images", "(from|import) torch")],
)
def test_nothing_in_validate_imports_docker_or_asserts_and_nothing_in_images_imports_torch(
    top: str, forbidden: str
) -> None:
    begins_statement = re.compile(rf"^\s*({forbidden})\b", re.MULTILINE)

    for path in (ROOT / top).rglob("*.py"):
        assert not begins_statement.search(path.read_text()), path


@pytest.mark.parametrize("image", LOCKED, ids=lambda image: str(image.name))
def test_rendered_dockerfiles_pass_hadolint(image: plan.Image, tmp_path: Path) -> None:
    base_context = BaseContext(reference=image.base.reference, origin="tag")
    lock = lock_file.read(image, CHECKOUT.locks)
    context = render.render(image, lock.files, base_context, suite={"claims.json": b"{}"})
    file = tmp_path / "Dockerfile"
    file.write_bytes(render.content_of(context["Dockerfile"]))

    hadolint = Path(sys.executable).with_name("hadolint")
    linted = subprocess.run([hadolint, file], capture_output=True, text=True, check=False)

    assert linted.returncode == 0 and not linted.stdout, linted.stdout + linted.stderr


@pytest.mark.parametrize(
    "script", sorted((ROOT / "templates").rglob("*.sh")), ids=lambda path: path.name
)
def test_scripts_are_posix_shell(script: Path) -> None:
    bashism_or_here_document = r"\[\[(?!:)|<<|function |local "

    subprocess.run(["sh", "-n", str(script)], check=True)
    assert not re.search(bashism_or_here_document, script.read_text())


FOLDER = ROOT / ".github"


def test_dependabot_looks_where_something_is() -> None:
    looks_for = {
        "pip": "pyproject.toml",
        "github-actions": ".github/workflows",
        "npm": "package.json",
    }
    config = yaml.safe_load((FOLDER / "dependabot.yml").read_text())
    assert config["version"] == 2
    for update in config["updates"]:
        assert update["schedule"]["interval"] in ("daily", "weekly", "monthly")
        folder = ROOT / update["directory"].lstrip("/")
        assert (folder / looks_for[update["package-ecosystem"]]).exists()


def test_hooks_run_commands_that_exist() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = []
    for repository in config["repos"]:
        hooks += repository["hooks"]

    for hook in hooks:
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
    requirements = [*PROJECT["dependencies"]]
    for extra in LOCKS[name]:
        requirements += PROJECT["optional-dependencies"][extra]

    for requirement in map(Requirement, requirements):
        version = locked.get(canonicalize_name(requirement.name), "")
        is_held = version and requirement.specifier.contains(version)
        assert is_held, f"{requirement}: `python -m tools.relock`"


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_is_held_by_a_hash_and_names_no_place(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    place = r"https?://|file:|--(extra-)?index|--find-links|/"
    # A package's line goes on in indented ones.
    blocks = [block for block in re.split(r"\n(?=\S)", text) if "==" in block]

    assert blocks and all("--hash=sha256:" in block for block in blocks)
    _, _, text_below_head = text.partition("\n")
    assert not re.search(place, text_below_head)


MANIFEST: dict[str, Any] = yaml.safe_load(
    (ROOT / "examples" / "kubernetes" / "validate-job.yaml").read_text()
)


@pytest.mark.parametrize("version", ["1.27", "1.30", "1.33", kubernetes_validate.latest_version()])
def test_the_manifest_is_what_the_schemas_take(version: str) -> None:
    kubernetes_validate.validate(MANIFEST, version, strict=True)


def test_the_container_runs_the_images_own_validate_on_a_gpu() -> None:
    (container,) = MANIFEST["spec"]["template"]["spec"]["containers"]
    program, *arguments = container["command"]

    tiers = inside._parser().parse_args(arguments).tier

    assert program == "validate"
    assert tiers == ["static", "cpu", "gpu"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
