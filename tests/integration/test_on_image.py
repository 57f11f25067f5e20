"""`validate` and `doctor` in a real image, as users start them, and a recorded run judged again."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from images.building.contexts import suite_of_image
from images.config.paths import CHECKOUT
from images.context import labels as image_labels
from images.context import render
from images.context.labels import BaseContext
from images.engine import ContainerSpec, Engine, ImageInfo
from images.locking import lock_file
from images.planning.image import Image
from images.validation.claims.context import ClaimContext
from tests.support import commands
from tests.support.broken_images import NAME, SITE
from tests.support.engine_contents import built
from tests.support.sources import SOURCES
from validate.claims import ClaimSet

pytestmark = pytest.mark.engine
TAG = "truetag-test-on-image"


@dataclass(frozen=True)
class Done:
    """How a command in a container ended."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def current(engine: Engine, image: Image, base_image: ImageInfo) -> Iterator[str]:
    """The image with the suite of this checkout, put there by the very step of its Dockerfile."""
    missing = image_labels.declared_missing(image, base_image.labels)
    lock = lock_file.read(image, CHECKOUT.locks)
    context_of_claims = ClaimContext.from_lock(image, lock, SOURCES.facts, missing=missing)
    suite = suite_of_image(context_of_claims, SOURCES)
    context = render.render(
        image, lock.files, BaseContext(reference="-", origin="tag"), suite=suite
    )
    dockerfile = context["Dockerfile"]
    assert isinstance(dockerfile, bytes)
    last = dockerfile.decode().split("FROM light AS image\n")[1]
    step = last[: last.index("ENV ")]
    assert "suite.sh" in step
    context.pop("Dockerfile")
    with built(
        engine, TAG, f"FROM {NAME}\nUSER root\n{step}USER {base_image.user}\n", context
    ) as tag:
        yield tag


@pytest.fixture(scope="module")
def few(engine: Engine, current: str, claims: ClaimSet, base_image: ImageInfo) -> Iterator[str]:
    """Yield the same image with few claims of each tier. The base image has them all."""
    checks = ("pins", "environment", "device", "numerics", "attention")
    rows = tuple(
        claim
        for claim in claims.claims
        if claim.check in checks or claim.key == "native/bitsandbytes"
    )
    copy = "COPY claims.json /opt/truetag/claims.json"
    dockerfile = f"FROM {current}\nUSER root\n{copy}\nUSER {base_image.user}\n"
    content = ClaimSet(image=claims.image, claims=rows).dumps()
    with built(engine, f"{TAG}-few", dockerfile, {"claims.json": content.encode()}) as tag:
        yield tag


@pytest.fixture(scope="module")
def broken(engine: Engine, few: str, base_image: ImageInfo) -> Iterator[str]:
    layer = f"RUN rm {SITE}/bitsandbytes/libbitsandbytes_cuda126.so\nENV NVIDIA_TF32_OVERRIDE=1\n"
    with built(
        engine, f"{TAG}-broken", f"FROM {few}\nUSER root\n{layer}USER {base_image.user}\n"
    ) as tag:
        yield tag


def run(
    engine: Engine,
    reference: str,
    command: Sequence[str],
    *,
    user: str | None = None,
    tmp: bool = True,
) -> Done:
    """Run a command in an image, without network, where only /tmp is writable.

    `tmp`: False: not even /tmp is.
    """
    folders = {"/tmp": "rw,exec,nosuid,nodev,mode=1777"} if tmp else {}
    lines: dict[str, list[str]] = {"stdout": [], "stderr": []}
    with engine.container(ContainerSpec(reference, command, tmpfs=folders, user=user)) as container:
        container.start()
        for stream, text in container.lines(timeout=1800):
            lines[stream].append(text)
        code = container.wait(timeout=300).code
    stdout = "\n".join(text.rstrip("\n") for text in lines["stdout"])
    stderr = "\n".join(text.rstrip("\n") for text in lines["stderr"])
    return Done(code, stdout, stderr)


def test_an_image_prints_its_verdict_and_what_was_not_run(engine: Engine, few: str) -> None:
    done = run(engine, few, ["validate", "--tier", "static"])

    assert done.code == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == f"an image on {NAME} with no package more  PASS"
    assert f"\nan image on {NAME}: PASS (" in done.stdout
    assert "\nnot run: cpu, gpu, multigpu" in done.stdout
    first_line, *_ = done.stderr.splitlines()
    assert first_line.startswith(f"measuring an image on {NAME}: "), (
        "printed before the first probe ends"
    )
    assert "measured static.pins" in done.stderr, "progress does not get in the way of the verdict"


def test_it_prints_the_verdict_as_json_and_nothing_else(engine: Engine, few: str) -> None:
    done = run(engine, few, ["validate", "--tier", "static", "--json"], user="61234:61234")

    verdict = json.loads(done.stdout)
    assert done.code == 0
    assert (verdict["image"], verdict["overall"], verdict["digest"]) == (
        f"an image on {NAME}",
        "PASS",
        "",
    )
    assert {row["tier"] for row in verdict["claims"]} == {"static"}


def test_a_broken_image_says_so_itself_with_the_fix(engine: Engine, broken: str) -> None:
    done = run(engine, broken, ["validate", "--json"])

    verdict = json.loads(done.stdout)
    assert (done.code, verdict["overall"]) == (1, "FAIL")
    failed = {}
    for row in verdict["claims"]:
        if row["verdict"] == "FAIL":
            failed[row["check"], row["subject"]] = row
    assert set(failed) == {("environment", "variables"), ("native", "bitsandbytes")}
    assert "libbitsandbytes_cuda126.so" in failed["native", "bitsandbytes"]["reason"]
    assert failed["native", "bitsandbytes"]["hints"][0]["id"] == "bitsandbytes-library"
    # There is no GPU here, so no gpu tier.
    assert {row["tier"] for row in verdict["claims"]} == {"static", "cpu"}
    assert "not run: this container was given no GPU: `docker run --gpus all" in done.stderr


def test_asked_for_gpus_where_the_container_has_none_it_says_how_to_give_it_some(
    engine: Engine, few: str
) -> None:
    for options in (["--tier", "gpu"], ["--tier", "static", "--tier", "multigpu", "--json"]):
        done = run(engine, few, ["validate", *options])

        assert (done.code, done.stdout) == (2, "")
        assert "libcuda.so.1" in done.stderr and "--gpus all" in done.stderr
        assert "Traceback" not in done.stderr


def test_nowhere_to_write_is_reported_without_a_traceback(engine: Engine, few: str) -> None:
    done = run(engine, few, ["validate", "--tier", "static"], tmp=False)

    assert done.code == 2
    assert "--tmpfs" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("file", ["/etc/hostname", "/etc/passwd", "/nowhere"])
def test_wrong_claims_are_reported_without_a_traceback(
    engine: Engine, current: str, file: str
) -> None:
    done = run(engine, current, ["validate", "--claims", file])

    assert done.code == 2
    assert file in done.stderr and "Traceback" not in done.stderr


def test_an_option_can_not_be_abbreviated(engine: Engine, current: str) -> None:
    done = run(engine, current, ["validate", "--claim", "pins"])

    assert done.code == 2
    assert "--claim" in done.stderr


def test_the_commands_do_not_change_what_the_image_starts(
    engine: Engine, current: str, base_image: ImageInfo
) -> None:
    list_unreadable = "find /opt/truetag ! -perm -o+r"
    script = f"command -v validate; command -v doctor; {list_unreadable}; echo done"

    done = run(engine, current, ["sh", "-c", script])

    assert done.stdout.splitlines() == ["/usr/local/bin/validate", "/usr/local/bin/doctor", "done"]
    for info in (engine.inspect(current), base_image):
        assert (info.entrypoint, info.command) == ((), ("bash",))


def test_apt_leaves_no_archives_in_what_is_built_on_an_image(engine: Engine, current: str) -> None:
    control = r"Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n"
    make_package = (
        f"mkdir -p /tmp/x/DEBIAN; printf '{control}' >/tmp/x/DEBIAN/control; "
        "dpkg-deb -b /tmp/x /tmp/x.deb"
    )
    leave_archive = "mkdir -p /var/cache/apt/archives; touch /var/cache/apt/archives/y.deb"
    install = (
        "apt-get install -qq /tmp/x.deb; ls /var/cache/apt /var/cache/apt/archives; dpkg-query -W x"
    )
    command = ["sh", "-ec", f"({make_package}; {leave_archive}; {install}) 2>&1"]
    spec = ContainerSpec(current, command, user="root", read_only=False)

    with engine.container(spec) as container:
        output = container.run(timeout=600)

    assert output.code == 0 and output.stdout.strip().endswith("x\t1"), output.stdout
    listing = output.stdout.partition("/var/cache/apt:")[2]
    assert not re.search(r"\.(deb|bin)$", listing, re.MULTILINE), output.stdout


def test_doctor_sees_the_stack_and_says_that_there_is_no_gpu(engine: Engine, current: str) -> None:
    done = run(engine, current, ["doctor", "--json"])
    assert done.code == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["stack"]["torch"].startswith("2.7.1")
    assert {"bitsandbytes", "transformers", "xformers"} <= set(data["stack"]["packages"])
    assert "sm_90" in data["stack"]["archs"]
    assert data["hardware"]["gpus"] == [] and any(
        "no GPU" in warning for warning in data["warnings"]
    )
    assert {"no-libcuda"} <= {hint["id"] for hint in data["hints"]}


def test_doctor_survives_a_torch_that_does_not(engine: Engine, current: str) -> None:
    breaking = "import sys, types; sys.modules['torch'] = None"
    done = run(
        engine,
        current,
        [
            "sh",
            "-c",
            f'mkdir /tmp/broken && echo "{breaking}" > /tmp/broken/sitecustomize.py && '
            "PYTHONPATH=/tmp/broken doctor --json",
        ],
    )
    assert done.code == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["stack"]["torch"] == "" and any("torch" in trouble for trouble in data["troubles"])


def test_a_recorded_run_is_judged_again_without_an_engine(
    engine: Engine, base_image: ImageInfo, tmp_path: Path
) -> None:
    asked = [NAME, "--tier", "static", "--claim", "pins"]
    done = commands.run("validate", *asked, "--out", str(tmp_path), DOCKER_HOST=engine.facts.url)
    assert (tmp_path / "validate").is_dir(), done.stderr
    (folder,) = (tmp_path / "validate").iterdir()
    assert {file.name for file in folder.iterdir()} >= {
        "evidence.json",
        "verdict.json",
        "report.md",
        "junit.xml",
    }
    again = ["--evidence", str(folder / "evidence.json"), "--json"]
    told = commands.run("validate", *again, DOCKER_HOST="tcp://127.0.0.1:9")
    assert json.loads(told.stdout) == json.loads((folder / "verdict.json").read_text())
