"""origin/layers, judged: other bytes of one recipe fail; what nobody can tell is UNPROVEN."""

import hashlib
from typing import Any

import pytest

from validate import installation
from validate.checks.static.host_origin import judge
from validate.judging import Finding, Status

BUILDS = ["Docker 20.10.24", "Docker 26.1.5"]
RECIPE = "r" * 64
OTHER_RECIPE = "other"


def digest(layer: str) -> str:
    """Return a diff ID that is made of a layer's name."""
    return f"sha256:{hashlib.sha256(layer.encode()).hexdigest()}"


def recorded(layer: str, **changed: Any) -> dict[str, Any]:
    """Return a layer as the record has it, with two builds. Its diff ID is made of its name."""
    row = {
        "layer": layer,
        "recipe": layer,
        "diff_id": digest(layer),
        "written_as": [],
        "builds": BUILDS,
    }
    return {**row, **changed}


RECORDED_LAYERS = [recorded(layer) for layer in ("base", "debian", "torch", "settings")]
EXPECT: dict[str, Any] = {
    "recipe": RECIPE,
    "layers": RECORDED_LAYERS,
    "arguments": "cu126-torch25",
    "is_derived": False,
}
DERIVED: dict[str, Any] = {**EXPECT, "is_derived": True}
LAYERS_OF_IMAGE = ("base", "debian", "torch", "suite", "settings")
"""The suite's layer is in no record."""


def image(other_layers: dict[str, str] | None = None, **changed: Any) -> dict[str, Any]:
    """Return the evidence of an image that is as recorded, but for some layers (name -> diff ID).

    An empty diff ID leaves a layer out. `changed` replaces whole fields of the evidence.
    """
    diff_ids = {layer: digest(layer) for layer in LAYERS_OF_IMAGE}
    diff_ids.update(other_layers or {})
    evidence = {
        "recipe": RECIPE,
        "layers": [
            {"layer": layer, "diff_id": diff_id} for layer, diff_id in diff_ids.items() if diff_id
        ],
        "canonical": True,
        "beside_suite": [],
        "changes": [],
    }
    return {**evidence, **changed}


WITH_ANOTHER_TORCH = {"torch": digest("another torch")}
OF_TORCH = digest("torch").removeprefix("sha256:")[:12]


def judged(measured: dict[str, Any], expect: dict[str, Any] = EXPECT) -> Finding:
    evidence: Any = measured
    expectation: Any = expect
    return judge("layers", expectation, evidence)


def test_the_recorded_bytes_pass_and_the_builds_are_named() -> None:
    status, reason, _ = judged(image())

    assert status is Status.PASS, reason
    assert "Docker 26.1.5" in reason


def test_the_recorded_bytes_pass_even_if_the_image_names_no_recipe() -> None:
    assert judged(image(recipe="")).status is Status.PASS


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        pytest.param(
            image(WITH_ANOTHER_TORCH),
            f"and the same build steps gave {OF_TORCH} before (Docker 20.10.24, Docker 26.1.5)",
            id="other-bytes",
        ),
        pytest.param(
            image({"torch": ""}),
            f"the layer torch is missing, and the same build steps gave {OF_TORCH} before",
            id="layer-is-missing",
        ),
        pytest.param(
            image({"settings": digest("another user")}),
            "the record of the image's settings (variables, user, labels) has the digest ",
            id="other-settings",
        ),
        pytest.param(
            image({"above": "sha256:x"}),
            "the image has a layer above, which none of its build steps makes",
            id="a-layer-too-many",
        ),
        pytest.param(
            image(beside_suite=["/opt/venv/x.py"]),
            "/opt/venv/x.py is in the layer of truetag's own checks, and belongs to none of them",
            id="foreign-file-in-the-suites-layer",
        ),
    ],
)
def test_other_bytes_of_the_same_recipe_fail(measured: dict[str, Any], words: str) -> None:
    status, reason, _ = judged(measured)

    assert status is Status.FAIL, reason
    assert words in reason


@pytest.mark.parametrize(
    ("removed", "replaced", "named"),
    [
        (["/opt"], {}, "/opt"),
        (["/opt/truetag"], {}, "/opt/truetag"),
        ([], {"/opt/truetag/constraints.txt": "content"}, "/opt/truetag/constraints.txt"),
        ([], {"/usr/local/bin/entrypoint": "mode"}, "/usr/local/bin/entrypoint"),
    ],
)
def test_a_step_that_changes_the_images_own_tools_is_named(
    removed: list[str], replaced: dict[str, str], named: str
) -> None:
    """No package lists them, and no build records the suite's layer: so nothing else sees it."""
    change = {"step": "RUN rm -rf /opt", "removed": removed, "replaced": replaced, "count": 1}

    status, reason, _ = judged(image({"above": "sha256:x"}, changes=[change]), DERIVED)

    assert status is Status.FAIL
    assert reason.startswith(f"`RUN rm -rf /opt` changes {named}, which ")


def test_a_step_that_changes_other_files_is_only_reported() -> None:
    """People edit /etc, and clean up apt's settings."""
    replaced = {"/opt/venv/x.py": "content", "/etc/apt/apt.conf.d/docker-clean": "content"}
    change = {"step": "RUN rm -rf /opt", "removed": [], "replaced": replaced, "count": 2}

    status, reason, _ = judged(image({"above": "sha256:x"}, changes=[change]), DERIVED)

    assert status is Status.PASS
    assert "`RUN rm -rf /opt` changes 2 paths" in reason


def test_a_layer_with_other_bytes_comes_with_the_command_that_names_the_files() -> None:
    reason = judged(image(WITH_ANOTHER_TORCH)).reason

    assert "`nox -s reproduce -- cu126-torch25 --beside IMAGE` names the files" in reason


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        pytest.param(
            image(WITH_ANOTHER_TORCH, recipe=OTHER_RECIPE),
            "built from another lock or other build steps than this checkout has",
            id="another-recipe",
        ),
        pytest.param(
            image(WITH_ANOTHER_TORCH, recipe=""),
            "by a release of truetag that did not note down the build steps",
            id="no-recipe",
        ),
        pytest.param(
            image(WITH_ANOTHER_TORCH, canonical=False),
            "locks/layers.json has other digests, or none, for these layers: torch. This proves no",
            id="layers-in-another-form",
        ),
        pytest.param(
            image(canonical=False),
            "the layer with truetag's own checks can't be read here",
            id="suites-layer-in-another-form",
        ),
        pytest.param(
            image(layers=[]),
            "the image's history names more or fewer steps",
            id="layers-without-names",
        ),
    ],
)
def test_layers_that_can_not_be_compared_are_unproven(measured: dict[str, Any], words: str) -> None:
    status, reason, _ = judged(measured)

    assert status is Status.UNPROVEN, reason
    assert words in reason


def test_the_reason_says_where_unread_layers_can_be_read() -> None:
    unread = "the engine runs on another machine: ask as root, on that machine"

    suite_only = judged({**image(canonical=False), "unread": unread})
    other_bytes = judged({**image(WITH_ANOTHER_TORCH, canonical=False), "unread": unread})

    assert suite_only.reason.endswith(unread) and other_bytes.reason.endswith(unread)
    # Older evidence does not say it.
    assert "only root can read it" in judged(image(canonical=False)).reason


OTHER_LAYERS = [recorded(layer) for layer in ("base", "debian", "settings")]


@pytest.mark.parametrize(
    "torch_layer",
    [
        pytest.param(recorded("torch", diff_id="", builds=[]), id="no-build"),
        pytest.param(recorded("torch", builds=BUILDS[:1]), id="one-build"),
    ],
)
def test_a_layer_of_less_than_two_recorded_builds_is_unproven(torch_layer: dict[str, Any]) -> None:
    status, reason, step = judged(image(), {**EXPECT, "layers": [*OTHER_LAYERS, torch_layer]})

    assert status is Status.UNPROVEN, reason
    assert "it takes two recorded builds" in reason and reason.endswith("fewer: torch")
    assert "`nox -s reproduce -- cu126-torch25 --record`" in step


def test_without_a_checkout_the_next_step_is_the_installed_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installation, "IS_CHECKOUT", False)
    layer = recorded("torch", diff_id="", builds=[])

    step = judged(image(), {**EXPECT, "layers": [*OTHER_LAYERS, layer]}).next_step

    assert "`truetag reproduce cu126-torch25 --record`" in step


@pytest.mark.parametrize(
    "expect",
    [
        pytest.param({**EXPECT, "layers": []}, id="none"),
        pytest.param({**DERIVED, "layers": [recorded("settings")]}, id="only-settings-of-a-base"),
    ],
)
def test_a_recipe_without_layers_is_unproven(expect: dict[str, Any]) -> None:
    assert judged(image(), expect).status is Status.UNPROVEN


# ---- Derived images.


def test_a_derived_image_has_settings_and_layers_of_its_own() -> None:
    status, reason, _ = judged(image({"settings": "sha256:x", "above": "sha256:y"}), DERIVED)

    assert status is Status.PASS, reason
    assert "its own steps replace and remove nothing of them" in reason


def test_what_the_steps_of_a_derived_image_change_is_listed() -> None:
    step = {
        "step": "RUN pip install numpy",
        "replaced": {"/a": "content"},
        "removed": ["/b"],
        "count": 9,
    }

    status, reason, _ = judged(image({"above": "sha256:y"}, changes=[step]), DERIVED)

    assert status is Status.PASS, reason
    assert "`RUN pip install numpy` changes 9 paths (/b, /a)" in reason


def test_a_derived_image_whose_base_image_has_other_bytes_fails() -> None:
    assert judged(image(WITH_ANOTHER_TORCH), DERIVED).status is Status.FAIL
