"""What several images share, read from their Dockerfiles; and what a bake file says of it."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from images.building import bake
from images.building.bake import BakeOptions, Provenance, Rendered, stages_of
from images.config.names import ImageName
from images.context import render
from images.context.base_context import BaseContext
from images.engine import ImageInfo
from images.errors import UserError
from images.locking import lock_file
from images.planning import plan
from images.publish import provenance
from images.publish.provenance import BuildRecord, ProvenanceInput
from tests.support.sources import SOURCES

INFO = ImageInfo(
    id=f"sha256:{'1' * 64}",
    tags=(),
    digests=(),
    size=1,
    created="2026-11-21T00:00:00Z",
    architecture="amd64",
    layers=("sha256:0",),
    labels={},
    env={},
    user="1001",
    workdir="/",
    entrypoint=(),
    command=(),
)
BASE_CONTEXT = BaseContext(reference="debian:bookworm-slim", origin="tag")


def rendered(name: str, changes: dict[str, bytes] | None = None) -> Rendered:
    (planned,) = plan.select([name], SOURCES)
    assert planned.image is not None
    extras = render.Extras(suite={"claims.json": name.encode()})
    files = {
        **render.render(planned.image, lock_file.read(planned.image).files, BASE_CONTEXT, extras),
        **(changes or {}),
    }
    digests = {path: sha256(data).hexdigest() for path, data in files.items() if isinstance(data, bytes)}
    dockerfile = files["Dockerfile"]
    assert isinstance(dockerfile, bytes)
    return Rendered(
        name=name,
        profile=planned.image.profile,
        dockerfile=dockerfile.decode(),
        digests=digests,
        platform=planned.image.platform,
    )


def shared(*images: Rendered) -> set[str]:
    """Stages that are targets of their own."""
    targets = bake.bake(images, BakeOptions())["target"]
    return {target["target"] for target in targets.values() if "target" in target}


def test_each_target_is_of_its_images_platform_and_no_stage_is_shared_across_platforms() -> None:
    """The base of both is called the same where a registry has an index of it."""
    names = [f"cu130-torch{torch}{suffix}" for torch in (211, 212) for suffix in ("", "-arm64")]
    targets = bake.bake([rendered(name) for name in names], BakeOptions())["target"]
    assert {name: targets[name]["platforms"] for name in names} == {
        name: ["linux/arm64" if name.endswith("-arm64") else "linux/amd64"] for name in names
    }
    for target in targets.values():
        needed = [one.removeprefix("target:") for one in target.get("contexts", {}).values()]
        assert {platform for one in needed for platform in targets[one]["platforms"]} <= set(target["platforms"])
    assert {target["platforms"][0] for target in targets.values() if "target" in target} == {
        "linux/amd64",
        "linux/arm64",
    }


def test_one_image_shares_nothing() -> None:
    content = bake.bake([rendered("cu126-torch27")], BakeOptions())
    assert list(content["target"]) == ["cu126-torch27"] and "contexts" not in content["target"]["cu126-torch27"]


def test_images_of_one_torch_share_its_layers_and_those_of_two_what_lies_below() -> None:
    profile, plain, other = (rendered(name) for name in ("cu128-torch28-axolotl", "cu128-torch28", "cu126-torch25"))
    assert "torch" not in shared(plain, other) and shared(plain, other) >= {"system", "tools"}
    both = shared(profile, plain)
    assert both & {"libraries", "light"} and "torch" not in both, "it is part of what is shared above it"


def test_a_file_that_a_stage_reads_parts_it() -> None:
    plain, profile = rendered("cu128-torch28"), rendered("cu128-torch28-axolotl")
    together = shared(plain, profile)
    assert shared(plain, rendered("cu128-torch28-axolotl", {"locks/torch.txt": b"torch==2.8.0\n"})) != together
    assert "system" not in shared(plain, rendered("cu128-torch28-axolotl", {"host/env": b"export A=b\n"}))
    assert shared(plain, rendered("cu128-torch28-axolotl", {"suite/claims.json": b"[]"})) == together


def test_every_link_names_a_target_and_a_stage_of_the_image() -> None:
    images = [rendered(name) for name in ("cu128-torch28", "cu128-torch28-axolotl", "cu126-torch27", "cu126-torch25")]
    targets = bake.bake(images, BakeOptions())["target"]
    stages = {image.name: {stage.name for stage in stages_of(image.dockerfile)} for image in images}
    for target in targets.values():
        image = target["context"].partition("/")[0]
        for stage, link in target.get("contexts", {}).items():
            linked = targets[link.removeprefix("target:")]
            assert stage in stages[image] and linked["target"] == stage and "tags" not in linked


@pytest.mark.parametrize("golden", sorted((Path(__file__).parents[2] / "golden").glob("*.Dockerfile")))
def test_all_stages_of_a_dockerfile_are_read(golden: Path) -> None:
    text = golden.read_text()
    stages = stages_of(text)
    assert len(stages) == sum(line.startswith("FROM ") for line in text.splitlines())
    *others, last = stages
    assert all(stage.name for stage in others) and last.name == "image" and last.needs
    assert set(last.needs) <= {stage.name for stage in others}
    read = {path for stage in stages for path in stage.files}
    for word in ("host", "scripts/debian.sh", "locks/torch.txt", "locks/tools.txt"):
        assert word in read
    assert "tools" in next(stage.needs for stage in others if stage.name == "torch")


def test_a_copy_from_the_context_is_read_and_one_from_a_stage_is_needed() -> None:
    text = (
        "FROM a AS b\nFROM a\nCOPY --chmod=0755 one \\\n  two /there\nCOPY --from=b /x /y\nCOPY --from=other:1 /x /z\n"
    )
    last = stages_of(text)[-1]
    assert (last.files, last.needs) == (["one", "two"], ["b"])


def test_candidates_are_pushed_without_an_attestation_unless_one_is_wished() -> None:
    (target,) = bake.bake([rendered("cu126-torch27")], BakeOptions(repository="r.test/x"))["target"].values()
    assert target["tags"] == ["r.test/x:cu126-torch27-candidate"] and target["output"] == ["type=registry"]
    assert target["attest"] == ["type=provenance,disabled=true"]
    options = BakeOptions(provenance=Provenance.MIN)
    (target,) = bake.bake([rendered("cu126-torch27")], options)["target"].values()
    assert (target["attest"], target["output"]) == (["type=provenance,mode=min"], ["type=docker"])


def test_caches_that_would_overwrite_each_other_are_refused() -> None:
    images = [rendered("cu126-torch27"), rendered("cu126-torch25")]
    with pytest.raises(UserError, match="to one place"):
        bake.bake(images, BakeOptions(cache_to=["type=registry,ref=r.test/cache"]))
    bake.bake(images, BakeOptions(cache_to=["type=inline"]))
    bake.bake(images[:1], BakeOptions(cache_to=["type=registry,ref=r.test/cache"]))


def test_groups_are_by_profile() -> None:
    images = [rendered(name) for name in ("cu128-torch28", "cu128-torch28-axolotl", "cu126-torch27")]
    assert {name: group["targets"] for name, group in bake.bake(images, BakeOptions())["group"].items()} == {
        "default": ["cu128-torch28", "cu128-torch28-axolotl", "cu126-torch27"],
        "profile-none": ["cu128-torch28", "cu126-torch27"],
        "profile-axolotl": ["cu128-torch28-axolotl"],
    }


def info(**labels: str) -> ImageInfo:
    ours = {f"dev.truetag.{key.replace('_', '-')}": value for key, value in labels.items()}
    return replace(INFO, labels=ours)


def test_a_baked_image_is_recorded_as_it_was_ordered_and_as_the_engine_has_it() -> None:
    base = {"reference": "debian:bookworm-slim", "origin": "tag", "digest": ""}
    one = replace(rendered("cu126-torch27"), revision="0123456789ab", base=base)
    one = replace(one, digests={**one.digests, "wheels/x-1-py3-none-any.whl": "5ha"})
    ordered = bake.inputs(one)
    assert ordered["wheels"] == {"x-1-py3-none-any.whl": "5ha"}
    fits = info(image="cu126-torch27", matrix_revision="0123456789ab", base="debian:bookworm-slim")
    record = bake.adopted(ordered, fits, {"flash-attn": "no wheel"})
    assert (record["digest"], record["base"], record["missing"]) == (INFO.id, base, {"flash-attn": "no wheel"})
    made = ProvenanceInput(
        name=ImageName.parse("cu126-torch27"),
        repository="r.test/x",
        digest="sha256:2",
        image_id=INFO.id,
        revision="0123456789ab",
        source="",
        locks={},
        build=BuildRecord.model_validate(record),
        created=INFO.created,
    )
    told = provenance.read(provenance.statement(made))
    assert told == {"digest": "sha256:2", "matrix-revision": "0123456789ab", "base-digest": ""}
    for other in (
        info(image="cu126-torch25", matrix_revision="0123456789ab", base="debian:bookworm-slim"),
        info(image="cu126-torch27", matrix_revision="another", base="debian:bookworm-slim"),
        info(image="cu126-torch27", matrix_revision="0123456789ab", base="debian:trixie-slim"),
        info(),
    ):
        with pytest.raises(UserError, match="its labels say otherwise"):
            bake.adopted(ordered, other, {})
