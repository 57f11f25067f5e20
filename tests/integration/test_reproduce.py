"""Two builds on a real engine: a difference is named, and the same lock gives the same base."""

import copy
from pathlib import Path
from typing import Any

import pytest

from images.building.contexts import BuildOptions
from images.config.paths import CHECKOUT
from images.context import bootstrap
from images.context.hosting import host_settings
from images.context.labels import BaseContext
from images.engine import Engine, ImageInfo
from images.engine.layers import canonical_diff_id, find_layers
from images.engine.progress import Progress
from images.locking import debian, layer_record
from images.planning.image import Image
from images.reproduction import builds, comparison
from images.reproduction.cold_builds import build_cache
from images.validation.rows import read_evidence
from tests.support.broken_images import NAME
from tests.support.sources import SOURCES
from validate.checks.static import host_origin
from validate.claims import ORIGIN_PROBE
from validate.judging import Status

pytestmark = pytest.mark.engine


def test_the_files_that_differ_are_named_and_nothing_is_left(
    engine: Engine, image: Image, base: BaseContext, tmp_path: Path
) -> None:
    options = BuildOptions(sources=SOURCES, host=host_settings(), out=tmp_path)
    network = host_settings().network(local=engine.facts.local)
    unsteady = builds.Reproduction(engine, image, base, options, network)
    # Named as a step of ours, and it gives other bytes each time.
    step = "sh /run/scripts/debian.sh || mkdir /opt/folder && date +%N >/opt/folder/now"
    unsteady.context = {"Dockerfile": f"FROM {base.reference}\nRUN {step}\n".encode()}
    with Progress() as progress:
        (first, files), (second, other_files) = (unsteady.build(progress) for _ in range(2))
    # Other tests build on this engine, too: what they keep is not looked at.
    assert [
        record.made_by for record in build_cache(engine) if "/opt/folder/now" in record.made_by
    ] == []
    assert first.on == second.on and first.id != second.id
    (difference,) = comparison.with_files(
        comparison.compare(first.layers, second.layers), files, other_files
    )
    assert difference.layer == "debian" and any(
        "/opt/folder/now: " in file for file in difference.files
    )


def test_recorded_layers_are_what_their_files_come_to(
    engine: Engine, base_image: ImageInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = {}
    for row in layer_record.read(CHECKOUT.locks).values():
        recorded.update(dict.fromkeys(row.written_as, row.diff_id))
    small_layers = []
    for layer in find_layers(engine, base_image).values():
        if layer.diff_id in recorded and sum(layer.file_sizes().values()) < 200_000_000:
            small_layers.append(layer)
    if not small_layers:
        pytest.skip("the engine's files are not here to be read, or it writes what is compared")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    for layer in small_layers:
        assert canonical_diff_id(layer) == recorded[layer.diff_id]


def test_the_origin_of_a_built_image_is_proven_and_one_changed_layer_fails(
    base_image: ImageInfo, out: Path
) -> None:
    evidence = read_evidence(out / NAME / "evidence.json")
    (claim,) = evidence.claim_set.measured_by([ORIGIN_PROBE]).claims
    record = evidence.record_of(claim.probe)
    assert record and evidence.digest == base_image.digest
    measured: Any = record.measurements[0].evidence
    expect: Any = claim.expect
    assert host_origin.judge(claim.subject, expect, measured).status is Status.PASS

    layers = copy.deepcopy(measured["layers"])
    (torch_layer,) = (row for row in layers if row["layer"] == "torch")
    torch_layer["diff_id"] = "sha256:planted"
    changed: Any = {**measured, "layers": layers}
    finding = host_origin.judge(claim.subject, expect, changed)

    assert finding.status is Status.FAIL
    assert "the layer torch has the digest planted" in finding.reason


def test_the_same_lock_gives_the_same_base(engine: Engine, image: Image, base: BaseContext) -> None:
    if base.origin != "bootstrapped":
        pytest.skip("there is a registry: no base is made here")
    try:
        lock = debian.require(image.base, CHECKOUT.locks)
        made = bootstrap.bootstrap(engine, image.base, lock, "truetag-test-base:1", host_settings())
        assert made.digest == base.digest
    finally:
        engine.untag("truetag-test-base:1")
