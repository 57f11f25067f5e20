"""origin/layers, judged: other bytes of one recipe fail, and what no record or engine can tell is UNPROVEN by name."""

from typing import Any

import pytest

from validate.checks.static.host_origin import judge
from validate.judging import Status

BUILDS = ["Docker 20.10.24", "Docker 26.1.5"]
RECIPE = "r" * 64


def expected(layer: str, **more: Any) -> dict[str, Any]:
    return {
        "layer": layer,
        "recipe": layer,
        "diff_id": f"sha256:{layer}",
        "written_as": [],
        "builds": BUILDS,
        **more,
    }


EXPECT: Any = {
    "recipe": RECIPE,
    "layers": [expected(layer) for layer in ("base", "debian", "torch", "settings")],
    "arguments": "cu126-torch25",
    "is_derived": False,
}


def evidence(other: dict[str, str] | None = None, **more: Any) -> Any:
    digests = {
        layer: f"sha256:{layer}" for layer in ("base", "debian", "torch", "suite", "settings")
    } | (other or {})
    layers = [{"layer": layer, "diff_id": diff_id} for layer, diff_id in digests.items() if diff_id]
    base = {
        "recipe": RECIPE,
        "layers": layers,
        "canonical": True,
        "beside_suite": [],
        "changes": [],
    }
    return {**base, **more}


def test_the_recorded_bytes_pass_and_the_builds_are_named() -> None:
    found = judge("layers", EXPECT, evidence())
    assert found.status is Status.PASS and "Docker 26.1.5" in found.reason, found.reason
    older = evidence(recipe="")
    assert judge("layers", EXPECT, older).status is Status.PASS, (
        "of an image that names no recipe, bytes decide"
    )


def test_a_recipe_without_layers_proves_nothing() -> None:
    assert judge("layers", {**EXPECT, "layers": []}, evidence()).status is not Status.PASS
    derived = {**EXPECT, "layers": [expected("settings")], "is_derived": True}
    assert judge("layers", derived, evidence()).status is Status.UNPROVEN


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (
            evidence({"torch": "sha256:x"}),
            "the layer torch is x; Docker 20.10.24, Docker 26.1.5 gave torch",
        ),
        (
            evidence({"torch": ""}),
            "the layer torch is missing; Docker 20.10.24, Docker 26.1.5 gave torch",
        ),
        (evidence({"settings": "sha256:x"}), "its settings are x; Docker 20.10.24"),
        (evidence({"above": "sha256:x"}), "no step of the recipe makes its layer above"),
        (
            evidence(beside_suite=["/opt/venv/x.py"]),
            "/opt/venv/x.py is in the suite's layer, and is not the suite's",
        ),
    ],
)
def test_other_bytes_of_the_same_recipe_fail_and_are_named(measured: Any, said: str) -> None:
    found = judge("layers", EXPECT, measured)
    assert found.status is Status.FAIL and said in found.reason, found.reason
    if "the layer torch is x" in said:
        assert (
            "`python -m tools.reproduce cu126-torch25 --beside IMAGE` names the files"
            in found.reason
        )


OTHERS = [expected(layer) for layer in ("base", "debian", "settings")]
UNKNOWN = [*OTHERS, expected("torch", diff_id="", builds=[])]
ONCE = [*OTHERS, expected("torch", builds=BUILDS[:1])]


@pytest.mark.parametrize(
    ("layers", "measured", "said"),
    [
        (UNKNOWN, evidence(), "no two builds of torch are recorded for this recipe"),
        (ONCE, evidence(), "no two builds of torch are recorded for this recipe"),
        (
            None,
            evidence({"torch": "sha256:x"}, recipe="other"),
            "built by another recipe than this checkout's",
        ),
        (
            None,
            evidence({"torch": "sha256:x"}, recipe=""),
            "built before images named their recipe",
        ),
        (
            None,
            evidence({"torch": "sha256:x"}, canonical=False),
            "this engine's layers can't be read here",
        ),
        (None, evidence(canonical=False), "its suite's layer can't be read here"),
        (None, evidence(layers=[]), "its history has another number of steps than it has layers"),
    ],
)
def test_what_nobody_can_know_is_unproven_with_what_would_prove_it(
    layers: Any, measured: Any, said: str
) -> None:
    found = judge("layers", {**EXPECT, "layers": layers or EXPECT["layers"]}, measured)
    assert found.status is Status.UNPROVEN and said in found.reason, found.reason
    if layers:
        assert "`python -m tools.reproduce cu126-torch25 --record`" in found.reason


def test_a_derived_image_has_its_own_settings_and_steps_and_what_these_change_is_listed() -> None:
    derived = {**EXPECT, "is_derived": True}
    changes = [
        {
            "step": "RUN pip install numpy",
            "replaced": {"/a": "content"},
            "removed": ["/b"],
            "count": 9,
        }
    ]
    measured = evidence({"settings": "sha256:x", "above": "sha256:y"}, changes=changes)
    found = judge("layers", derived, measured)
    assert found.status is Status.PASS, found.reason
    assert "`RUN pip install numpy` changes 9 paths (/b, /a)" in found.reason
    assert "replace and remove nothing" in judge("layers", derived, evidence()).reason
    assert judge("layers", derived, evidence({"torch": "sha256:x"})).status is Status.FAIL
