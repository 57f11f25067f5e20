"""Derived images, built and judged for real: what people rightly do passes, on the host and inside.

The Dockerfiles have the shapes of public ones: docs/derived.md lists what is judged.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from images.engine import ContainerSpec, Engine, ImageInfo
from tests.support import commands
from tests.support.broken_images import NAME
from tests.support.engine_contents import built
from validate.claims import ClaimSet

pytestmark = pytest.mark.engine

SITE = "/opt/venv/lib/python3.11/site-packages"
SETUP = """\
{imports}
from setuptools import setup
setup(name={name!r}, version="0.1", {modules})
"""
PROJECT = {
    "project/setup.py": SETUP.format(
        imports="", name="my-training", modules="packages=['my_training']"
    ).encode(),
    "project/my_training/__init__.py": b"import torch\n",
    "extension/setup.py": SETUP.format(
        imports="import torch", name="my-extension", modules="py_modules=['my_extension']"
    ).encode(),
    "extension/my_extension.py": b"import torch\n",
    "derived.toml": b"""
        [variables]
        HF_ENDPOINT = 'https://hf.example.com'
        [commands.smoke]
        run = 'python -c "import my_training, my_extension"'
    """,
}
"""A project that is installed editable, one whose setup.py needs torch, and a declaration."""
NETRC = b"machine api.wandb.ai\n  login user\n  password 0123456789abcdef0123456789abcdef01234567\n"
_INFO = "packages/for_numpy_1-1.0.dist-info"
ACCIDENTS = {
    "netrc": NETRC,
    "packages/for_numpy_1.py": b"raise ValueError('numpy.dtype size changed')\n",
    f"{_INFO}/METADATA": b"Name: for-numpy-1\nVersion: 1.0\nRequires-Dist: numpy<2\n",
    f"{_INFO}/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
    f"{_INFO}/RECORD": b"for_numpy_1.py,,\n"
    + b"".join(
        f"for_numpy_1-1.0.dist-info/{name},,\n".encode() for name in ("METADATA", "WHEEL", "RECORD")
    ),
}
"""A login that was copied in, and a package as pycocotools is beside numpy 2
(cocodataset/cocoapi#248)."""
HEALTHY = """\
USER root
RUN useradd --uid 1006 --create-home --shell /bin/bash standard && install -d -o 1006 /data
COPY project /src/project
RUN pip install --no-cache-dir --no-build-isolation --no-deps -e /src/project
COPY extension /tmp/extension
RUN pip install --no-cache-dir --no-build-isolation --no-deps /tmp/extension && rm -r /tmp/extension
COPY derived.toml /opt/truetag/derived.toml
ENV HOME=/home/standard HF_HOME=/data PYTHONUNBUFFERED=1 MY_PROJECT=finetune
ENV HF_ENDPOINT=https://hf.example.com
RUN echo code >/workspace/train.py
USER standard
WORKDIR /home/standard
ENTRYPOINT ["python"]
"""
BROKEN = f"""\
USER root
COPY packages {SITE}
COPY --chown=1001 netrc /home/trainer/.netrc
RUN mkdir -p /app/.triton
ENV TRITON_CACHE_DIR=/app/.triton OMP_PROC_BIND=true DISABLE_PTXAS_OPT=1
ENV HF_ENDPOINT=https://hf-mirror.example
WORKDIR /app
USER 1001
"""
FAULTS = {
    "added/folders": ("the working folder, /app", "TRITON_CACHE_DIR, /app/.triton"),
    "added/imports": ("for-numpy-1 1.0 can't be imported", "numpy.dtype size changed"),
    "added/requirements": ("for-numpy-1 1.0 requires numpy<2",),
    "hygiene/secrets": ("/home/trainer/.netrc",),
    "environment/variables": (
        "OMP_PROC_BIND=true",
        "DISABLE_PTXAS_OPT=1",
        "HF_ENDPOINT=https://hf-mirror.example",
    ),
}
"""Claim -> what its reason names."""
CHECKS = ("pins", "files", "environment", "added", "hygiene", "lookup", "modes")
"""The checks that judge what a derived image does. The others take minutes, and are judged of the
base image."""
INSIDE = ("pins", "environment", "hygiene", "lookup", "modes")
"""Those of the image with accidents that its own `validate` makes. The healthy one makes all."""


def judge_on_host(
    engine: Engine, tag: str, out: Path, checks: Sequence[str] = CHECKS
) -> dict[str, dict[str, object]]:
    """Return the verdicts of `validate` on the host, by claim, of these checks."""
    chosen = [word for check in checks for word in ("--claim", check)]
    done = commands.run(
        "validate",
        NAME,
        "--image",
        tag,
        "--gpus",
        "none",
        "--json",
        *chosen,
        "--out",
        str(out),
        DOCKER_HOST=engine.facts.url,
    )
    assert done.returncode in (0, 1), done.stderr[-3000:]
    return by_claim(done.stdout)


def judge_inside(engine: Engine, tag: str) -> dict[str, dict[str, object]]:
    """Return the verdicts of the image's own `validate`, of the static tier, by claim.

    A folder of the user is mounted, which is not the image's: it has a credential.
    """
    command = ["validate", "--tier", "static", "--json"]
    spec = ContainerSpec(tag, command, tmpfs={"/tmp": "rw,exec,mode=1777"}, volumes=["/mnt/mine"])
    with engine.container(spec) as container:
        container.put({".netrc": NETRC}, "/mnt/mine")
        done = container.run(timeout=1800)
    assert done.code in (0, 1), done.stderr[-3000:]
    return by_claim(done.stdout)


def by_claim(verdict: str) -> dict[str, dict[str, object]]:
    """Return the claims of a verdict.json by their names."""
    return {f"{row['check']}/{row['subject']}": row for row in json.loads(verdict)["claims"]}


def failures(claims: dict[str, dict[str, object]]) -> dict[str, object]:
    """Return the required claims that failed, each with its reason."""
    return {
        key: row["reason"]
        for key, row in claims.items()
        if row["required"] and row["verdict"] == "FAIL"
    }


def test_what_people_rightly_do_passes_on_the_host_and_inside(
    engine: Engine, base_image: ImageInfo, tmp_path: Path
) -> None:
    """An own user, home and entrypoint, an editable package, an extension, declared changes."""
    with built(engine, "truetag-test-healthy", f"FROM {NAME}\n{HEALTHY}", PROJECT) as tag:
        on_host = judge_on_host(engine, tag, tmp_path, [*CHECKS, "image", "origin", "command"])
        inside = judge_inside(engine, tag)

    not_passed = {key for key, row in on_host.items() if row["verdict"] != "PASS"}
    assert {key for key in not_passed if on_host[key]["required"]} == set()
    report = (tmp_path / "validate" / "truetag-test-healthy" / "report.md").read_text()
    assert "- packages added: 2 (my-extension 0.1, my-training 0.1)" in report
    assert on_host["command/smoke"]["verdict"] == "PASS"
    assert on_host["added/imports"]["reason"] == "2 added packages can be imported"
    assert "reported: HF_ENDPOINT, MY_PROJECT" in str(on_host["environment/variables"]["reason"])
    assert failures(inside) == {}
    shared = on_host.keys() & inside.keys()
    assert {key: on_host[key]["verdict"] for key in shared} == {
        key: inside[key]["verdict"] for key in shared
    }


def test_what_breaks_by_accident_fails_with_its_name_on_the_host_and_inside(
    engine: Engine, base_image: ImageInfo, claims: ClaimSet, tmp_path: Path
) -> None:
    few = {"claims.json": claims.where(lambda claim: claim.check in INSIDE).dumps().encode()}
    with built(engine, "truetag-test-accidents", f"FROM {NAME}\n{BROKEN}", ACCIDENTS) as tag:
        on_host = failures(judge_on_host(engine, tag, tmp_path))
        with_few = f"FROM {tag}\nCOPY claims.json /opt/truetag/claims.json\n"
        with built(engine, "truetag-test-few-claims", with_few, few) as tag_with_few:
            inside = failures(judge_inside(engine, tag_with_few))

    assert on_host.keys() == FAULTS.keys()
    for claim, names in FAULTS.items():
        assert [name for name in names if name not in str(on_host[claim])] == []
    measured_inside = ("added/folders", "environment/variables", "hygiene/secrets")
    assert inside == {key: on_host[key] for key in measured_inside}


def test_a_step_that_removes_what_pip_needs_is_named(
    engine: Engine, base_image: ImageInfo, tmp_path: Path
) -> None:
    """No package lists these files: the layers of the image show that a step changed them."""
    dockerfile = f"FROM {NAME}\nUSER root\nRUN rm -r /opt/truetag/constraints.txt\nUSER 1001\n"
    with built(engine, "truetag-test-tools", dockerfile) as tag:
        on_host = judge_on_host(engine, tag, tmp_path, ["origin"])

    reason = str(failures(on_host)["origin/layers"])
    assert reason.startswith("`RUN /bin/sh -c rm -r /opt/truetag/constraints.txt` changes ")
