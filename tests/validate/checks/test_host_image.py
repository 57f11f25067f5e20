"""image: an image's labels, size, settings, history and layers, judged from evidence."""

from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.judging import fails, judge_claim, spoiled_by, wrong
from validate.checks.static import host_image
from validate.claims import HOST_PROBE, Claim, ImageKind, Tier
from validate.judging import Finding, Status

HEALTHY: dict[str, Any] = cases(__file__, "healthy")
EXPECT: dict[str, Any] = cases(__file__, "expected")
"""Subject of a claim -> what it expects."""


def judged(subject: str, **measured: Any) -> Finding:
    """Judge evidence. What is not given is well."""
    claim = Claim(
        check="image",
        subject=subject,
        tier=Tier.STATIC,
        probe=HOST_PROBE,
        statement="-",
        expect=EXPECT[subject],
    )
    return judge_claim(claim, {**HEALTHY, **measured})


@pytest.mark.parametrize("subject", EXPECT)
def test_a_healthy_image_passes(subject: str) -> None:
    assert judged(subject).status is Status.PASS


@pytest.mark.parametrize("subject", EXPECT)
def test_files_that_can_not_be_read_are_no_matter_of_the_host(subject: str) -> None:
    assert judged(subject, unreadable=["/root"]).status is Status.PASS


@pytest.mark.parametrize(("subject", "words", "changes"), wrong("image"))
def test_a_wrong_label_size_setting_layer_or_step_fails(
    subject: str, words: str, changes: dict[str, Any]
) -> None:
    fails(judged(subject, **spoiled_by(HEALTHY, changes)), words)


def test_labels_that_do_not_name_a_silent_fault_are_unproven() -> None:
    labels = {**HEALTHY["labels"], "dev.truetag.silent-faults": "b#2"}

    status, reason, _ = judged("labels", labels=labels)

    assert status is Status.UNPROVEN
    assert "does not name pytorch#196678" in reason


def test_labels_of_another_revision_of_the_matrix_pass_and_it_is_reported() -> None:
    labels = {
        **HEALTHY["labels"],
        "dev.truetag.matrix-revision": "0",
        "org.opencontainers.image.version": "0",
    }

    finding = judged("labels", labels=labels)

    assert finding[:2] == (Status.PASS, "1 labels say what the matrix says, by revision 0")


@pytest.mark.parametrize(("ours", "is_fault"), [([], False), (["/usr/local/bin/entrypoint"], True)])
def test_an_entrypoint_of_a_custom_base_is_reported_where_ours_would_not_stand(
    ours: list[str], is_fault: bool
) -> None:
    evidence = {**HEALTHY, "entrypoint": ["/opt/agent/run"]}
    expect = {
        **EXPECT["settings"],
        "entrypoint": ours,
        "image_kind": ImageKind.ON_CUSTOM_BASE,
    }

    finding = host_image.judge_settings("settings", expect, evidence)  # type: ignore[arg-type]

    assert (finding.status is Status.FAIL) is is_fault
    assert "/opt/agent/run" in finding.reason


COPIED = {
    "step": "RUN chown -R 1000 /app",
    "layer": 7,
    "how": "copied",
    "files": 3,
    "bytes": 9_000_000_000,
    "largest": "/app/model",
}
REMOVED = {**COPIED, "step": "", "how": "removed"}


@pytest.mark.parametrize(
    ("wasted", "words"),
    [
        (
            COPIED,
            "step `RUN chown -R 1000 /app` (layer 7) copies 3 files of lower layers (9,000.0 MB",
        ),
        (
            REMOVED,
            "removes 3 files of lower layers (9,000.0 MB; the largest is /app/model), so each",
        ),
    ],
)
def test_a_step_that_makes_bytes_travel_for_nothing_is_named(
    wasted: dict[str, Any], words: str
) -> None:
    fails(judged("layers", wasted=[wasted]), words)
    fails(host_image.judge_bytes("bytes", {}, {**HEALTHY, "wasted": [wasted]}), words)

    derived: Any = {"image_kind": ImageKind.DERIVED}
    of_derived = host_image.judge_layers("layers", derived, {**HEALTHY, "wasted": [wasted]})
    assert of_derived.status is Status.PASS
    assert words in of_derived.reason


def test_layers_without_wasted_bytes_pass_and_unread_ones_are_unproven() -> None:
    unread: Any = {"unread": "the engine is remote"}

    assert host_image.judge_bytes("bytes", {}, HEALTHY).status is Status.PASS  # type: ignore[arg-type]
    assert host_image.judge_bytes("bytes", {}, unread).status is Status.UNPROVEN
