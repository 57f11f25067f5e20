"""examples/kubernetes: the manifest is what Kubernetes' published schemas take, and asks `validate` what it knows."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.checkout import ROOT
from validate import inside

MANIFEST: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "kubernetes" / "validate-job.yaml").read_text())


@pytest.mark.parametrize("version", ["1.27", "1.30", "1.33", kubernetes_validate.latest_version()])
def test_the_manifest_is_what_the_schemas_take(version: str) -> None:
    kubernetes_validate.validate(MANIFEST, version, strict=True)


def test_the_container_runs_the_images_own_validate_on_a_gpu() -> None:
    (container,) = MANIFEST["spec"]["template"]["spec"]["containers"]
    program, *arguments = container["command"]
    assert program == "validate" and inside._parser().parse_args(arguments).tier == ["static", "cpu", "gpu"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
