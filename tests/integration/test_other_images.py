"""A planted fault of an image and one of the machine are told apart by another image.

The images are tiny, and a folder that is mounted stands in for the driver: a check that only this
test has looks for a library in the image, and for one in that folder.
"""

import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from images.building import naming, other_images, validating
from images.building.other_images import OtherImages, RecordedPass
from images.config import paths
from images.context.labels import BaseContext
from images.engine import Engine
from images.engine.gpus import Attachment
from images.hardware.inventory import Gpu, GpuMode, Inventory
from images.validation import containers
from tests.support.engine_contents import built
from tests.support.small_base import python_base
from tests.support.sources import SOURCES
from validate import checks
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence
from validate.judge import ClaimVerdict, judge
from validate.judging import Finding, Status, failed, passed

pytestmark = pytest.mark.engine

GPU = Gpu(name="NVIDIA H200", capability=(9, 0), memory=140 << 30)
CLAIM = Claim(
    check="planted", subject="libraries", tier=Tier.GPU, probe="gpu.planted", statement=""
)
CLAIMS = ClaimSet(image="cu130-torch214", claims=(CLAIM,))
DRIVER = "/run/driver"
CHECK = f"""
import os

def measure(claims):
    yield "libraries", {{"missing": [
        path for path in ("/opt/kernels.so", "{DRIVER}/libcuda.so.1") if not os.path.exists(path)
    ]}}
"""


def judge_planted(_subject: str, _expect: Any, evidence: Mapping[str, Any]) -> Finding:
    missing = evidence["missing"]
    return failed(f"{missing[0]} is missing") if missing else passed("both are there")


@pytest.fixture(scope="module")
def tags(engine: Engine, base: BaseContext) -> Iterator[dict[str, str]]:
    """The tags of an image with its library, and of one without."""
    dockerfiles = {
        "good": "COPY kernels.so /opt/kernels.so",
        "broken": "COPY kernels.so /opt/no.so",
    }
    with ExitStack() as stack:
        python = stack.enter_context(python_base(engine, base))
        tags = {}
        for name, step in dockerfiles.items():
            tag = f"truetag-test-other-{name}:{uuid.uuid4().hex[:12]}"
            dockerfile = f"FROM {python}\n{step}\n"
            files: dict[str, bytes | Path] = {"kernels.so": b"code"}
            tags[name] = stack.enter_context(built(engine, tag, dockerfile, files, "none"))
        yield tags


@pytest.fixture(autouse=True)
def planted_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the check into the suite that containers get, and its judge beside the others."""
    suite = tmp_path / "validate"
    shutil.copytree(paths.SUITE, suite, ignore=shutil.ignore_patterns("__pycache__"))
    (suite / "checks" / "gpu" / "planted.py").write_text(CHECK)
    monkeypatch.setattr(containers, "SUITE", suite)
    monkeypatch.setattr(checks, "judge_of", lambda _claim: judge_planted)
    monkeypatch.setattr(validating, "claims_of", lambda *_args, **_options: CLAIMS)


def validate(
    engine: Engine, tags: Mapping[str, str], name: str, driver: Path
) -> tuple[Evidence, ClaimVerdict, str]:
    """Validate an image on a machine with this folder of a driver, and compare with the good one.

    Returns the evidence, the verdict on its claim, and why the image gets no name.
    """
    gpus = Attachment(
        mode=GpuMode.HOST_DRIVER,
        reason="a folder stands in for the driver",
        inventory=Inventory(driver="580.95.05", gpus=(GPU,), source="test"),
        binds={str(driver): DRIVER},
    )
    recorded = RecordedPass(
        run="cu126-torch25/h200",
        image="cu126-torch25",
        digest=engine.inspect(tags["good"]).digest,
        payload={},
        gpus=[GPU.name],
        claims=[CLAIM.key],
        is_of_today=True,
    )
    others = OtherImages(engine, SOURCES, lambda: [recorded], lambda _text: None)
    tiers = (Tier.STATIC, Tier.CPU, Tier.GPU)
    evidence, verdict = validating.measure_and_judge(
        engine, tags[name], CLAIMS, tiers, gpus, compare=others.compare
    )
    (judged,) = verdict.claims
    # Recorded evidence gives the same verdict without an engine.
    again = Evidence.loads(evidence.dumps())
    assert judge(again.claim_set, again).claims[0].reason == judged.reason
    return evidence, judged, naming.why_withheld(verdict, evidence, tiers)


def test_a_fault_of_the_image_is_the_images(
    engine: Engine, tags: dict[str, str], tmp_path: Path
) -> None:
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "libcuda.so.1").touch()

    evidence, judged, withheld = validate(engine, tags, "broken", driver)

    assert judged.status is Status.FAIL
    assert judged.reason == (
        "/opt/kernels.so is missing; the image cu126-torch25 passes this claim on this machine, "
        "so the fault is the image's"
    )
    assert withheld == "1 claim failed (planted/libraries)"
    (other,) = evidence.host["other_images"]
    assert other["digest"] == engine.inspect(tags["good"]).digest


def test_a_fault_of_the_machine_is_the_machines(
    engine: Engine, tags: dict[str, str], tmp_path: Path
) -> None:
    driver = tmp_path / "driver"
    driver.mkdir()

    _, judged, withheld = validate(engine, tags, "broken", driver)

    assert judged.status is Status.UNPROVEN
    assert judged.reason == (
        "the host's fault: the image cu126-torch25, which passed this before on a GPU of this "
        f"model, fails here, too ({DRIVER}/libcuda.so.1 is missing); "
        "this image: /opt/kernels.so is missing"
    )
    assert withheld == judged.reason


def test_another_image_that_takes_too_long_is_stopped_and_leaves_nothing_behind(
    engine: Engine, tags: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "libcuda.so.1").touch()
    slow = CHECK.replace("import os\n", "import os, time\n").replace(
        "    yield", "    time.sleep(60 if os.path.exists('/opt/kernels.so') else 0)\n    yield", 1
    )
    (tmp_path / "validate" / "checks" / "gpu" / "planted.py").write_text(slow)
    monkeypatch.setattr(other_images, "MOST_SECONDS", 3)

    evidence, judged, _ = validate(engine, tags, "broken", driver)

    assert judged.reason == "/opt/kernels.so is missing"
    reason = evidence.host["not_compared"][CLAIM.key]
    assert reason.startswith("the image cu126-torch25 did not measure it: did not end within ")
