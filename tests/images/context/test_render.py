"""Build contexts: what images share byte for byte, what differs, and what each step does."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.config.paths import CHECKOUT
from images.context import labels as image_labels
from images.context import render, templates
from images.context.labels import BaseContext
from images.locking import lock_file
from images.planning.image import Image
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES, image
from tools import generate

BASE_CONTEXT = BaseContext(reference="debian:bookworm-slim", origin="tag")
SHARED_STAGES = ("system", "tools", "cuda", "torch", "kernels")


def context_of(
    image: Image,
    locks: Mapping[str, bytes] | None = None,
    base: BaseContext = BASE_CONTEXT,
    **extras: Any,
) -> dict[str, bytes]:
    """Return the files of an image's context except wheels; by default with its own lock."""
    if locks is None:
        locks = lock_file.read(image, CHECKOUT.locks).files
    files = render.render(image, locks, base, **extras)
    return {path: content for path, content in files.items() if isinstance(content, bytes)}


def stages(context: Mapping[str, bytes]) -> dict[str, str]:
    """Return the text of each stage of the Dockerfile by its name; the last one is `image`."""
    dockerfile = context["Dockerfile"].decode()
    parts = re.split(r"^# ---- (?:the )?(\w+).*\n", dockerfile, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def names_in(lock: bytes) -> list[str]:
    return re.findall(r"^([a-z0-9-]+)==", lock.decode(), re.MULTILINE)


def test_generated_files_are_current() -> None:
    files = generate.files(SOURCES)

    outdated = [path for path, content in files.items() if (ROOT / path).read_bytes() != content]
    assert files
    assert not outdated, "`nox -s generate` renews them"


# --- what images share ----------------------------------------------------------------------------


def test_the_same_image_has_the_same_context() -> None:
    assert context_of(image("cu126-torch25")) == context_of(image("cu126-torch25"))


def test_images_of_one_torch_share_its_stages_and_their_files_byte_for_byte() -> None:
    cu124, cu126 = context_of(image("cu124-torch25")), context_of(image("cu126-torch25"))

    for name in SHARED_STAGES:
        assert stages(cu124)[name] == stages(cu126)[name], name
    for path in (
        "locks/tools.txt",
        "locks/cuda.txt",
        "locks/torch.txt",
        "locks/kernels.txt",
        "scripts/install.sh",
    ):
        assert cu124[path] == cu126[path], path


def test_a_devel_image_shares_the_stages_of_the_plain_one() -> None:
    plain = stages(context_of(image("cu124-torch26")))
    devel = stages(context_of(image("cu124-torch26-devel")))

    for name in SHARED_STAGES:
        assert plain[name] == devel[name], name


def test_moving_a_package_of_the_top_layer_changes_only_the_last_stage() -> None:
    before = image("cu126-torch27")
    pins = []
    for pin in before.pins:
        is_moved = pin.name == "liger-kernel"
        pins.append(dataclasses.replace(pin, version="0.6.3") if is_moved else pin)
    after = dataclasses.replace(before, pins=tuple(pins))
    locks = dict(lock_file.read(before, CHECKOUT.locks).files)
    locks["light.txt"] = locks["light.txt"].replace(b"liger-kernel==0.6.4", b"liger-kernel==0.6.3")

    stages_before, stages_after = stages(context_of(before)), stages(context_of(after, locks))

    # The comment above a stage names its packages; the instructions of `light` read its lock.
    changed = {name for name in stages_before if stages_before[name] != stages_after[name]}
    assert changed == {"image"}


def test_only_the_last_stage_has_variables_and_labels() -> None:
    texts = stages(context_of(image("cu126-torch25")))

    assert {name for name, text in texts.items() if "ENV " in text or "LABEL " in text} == {"image"}


def test_the_wheels_of_the_largest_layers_are_not_kept_in_the_cache() -> None:
    texts = stages(context_of(image("cu126-torch25")))

    with_cache = {name for name, text in texts.items() if "id=truetag-uv" in text}
    assert with_cache == {"toolkit", "kernels", "libraries", "light"}


# --- packages, indexes and wheels -----------------------------------------------------------------


def test_on_a_custom_base_the_environment_is_made_with_the_python_that_it_brings() -> None:
    own = dataclasses.replace(BASE_CONTEXT, origin="custom", python="/opt/python/bin/python3.11")

    rendered = stages(context_of(image("cu126-torch27"), base=own))
    system = rendered["system"]

    assert "compilers.sh /opt/python/bin/python3.11 git:git" in system
    assert "/opt/python/bin/python3.11 -m venv --without-pip /opt/venv" in system
    assert "debian.sh" not in system
    # Its pip.conf decides nothing.
    assert "PIP_CONFIG_FILE=/dev/null sh /run/scripts/tools.sh" in rendered["tools"]


def test_on_a_base_without_apt_nothing_is_mounted_over_its_folders() -> None:
    """The engine would make these folders in the layer, dated today: no build gave it again."""
    own = dataclasses.replace(BASE_CONTEXT, origin="custom", python="/opt/python/bin/python3.11")
    without_apt = dataclasses.replace(own, has_apt=False)

    def system_on(base: BaseContext) -> str:
        return stages(context_of(image("cu126-torch27"), base=base))["system"]

    assert "target=/var/lib/apt/lists" in system_on(own)
    assert "target=/var" not in system_on(without_apt)


def test_every_base_gets_all_packages_of_the_lock() -> None:
    """A base's own packages are not seen: the environment has none of them."""
    own = dataclasses.replace(BASE_CONTEXT, origin="custom", python="/opt/python/bin/python3.11")

    def locks_on(base: BaseContext) -> dict[str, bytes | Path]:
        context = context_of(image("cu126-torch27"), base=base)
        return {path: text for path, text in context.items() if path.startswith("locks/")}

    assert locks_on(own) == locks_on(BASE_CONTEXT)


def test_the_index_of_torchs_own_build_is_used_only_by_images_that_need_it() -> None:
    of_default_index = image("cu126-torch27")
    index = "https://example.invalid/whl/cu128"
    with_own_index = dataclasses.replace(of_default_index, index=index)
    locks = lock_file.read(of_default_index, CHECKOUT.locks).files

    assert "--index" not in stages(context_of(of_default_index))["torch"]
    assert f"--index {index}" in stages(context_of(with_own_index, locks))["torch"]


def test_a_wheel_with_compiled_extensions_takes_the_place_of_the_locks_pure_python(
    tmp_path: Path,
) -> None:
    colossalai = image("cu124-torch25-colossalai")
    wheel = "colossalai-0.5.0-cp311-cp311-linux_x86_64.whl"

    without_wheel = context_of(colossalai)
    with_wheel = context_of(colossalai, wheels={wheel: tmp_path})

    step = f"install.sh /opt/venv/bin/python /run/wheels/{wheel}"
    assert step in stages(with_wheel)["profile"]
    before = names_in(without_wheel["locks/profile.txt"])
    after = names_in(with_wheel["locks/profile.txt"])
    assert [name for name in before if name != "colossalai"] == after
    assert "colossalai" in before


def test_a_layer_with_a_package_that_is_built_from_source_mounts_the_build_tools() -> None:
    plain = image("cu126-torch27")
    locks = {**lock_file.read(plain, CHECKOUT.locks).files, "build.txt": b"setuptools==80.9.0\n"}
    with_source = dataclasses.replace(plain, from_source=("einops",))
    build_tools = "--build-constraints /run/locks/build.txt"

    assert build_tools not in context_of(plain)["Dockerfile"].decode()
    stages_with_source = stages(context_of(with_source, locks))
    assert build_tools in stages_with_source["libraries"]
    assert build_tools not in stages_with_source["torch"]


def test_nvcc_of_a_cuda_12_devel_image_comes_from_debians_packages() -> None:
    context = context_of(image("cu124-torch26-devel"))

    toolkit = stages(context)["toolkit"]
    assert "toolkit.sh /opt/venv/bin/python 12.4 runtime" in toolkit
    assert "sh /run/scripts/debian_toolkit.sh 12.4 trixie" in toolkit
    assert "devel.sh /opt/venv/bin/python 12.4" in context["Dockerfile"].decode()


@pytest.mark.parametrize("name", ["cu124-torch26", "cu130-torch211-devel"])
def test_an_image_without_nvcc_or_with_nvcc_from_wheels_needs_no_debian_toolkit(name: str) -> None:
    assert b"debian_toolkit" not in context_of(image(name))["Dockerfile"]


# --- what an image lacks --------------------------------------------------------------------------


EXTENSIONS = "colossalai extensions"


@pytest.mark.parametrize(
    ("name", "label", "believed"),
    [
        ("cu126-torch27", {"torch": "not today", "flash-attn": "no wheel"}, ["flash-attn"]),
        ("cu124-torch25-colossalai", {EXTENSIONS: "x", "torch extensions": "x"}, [EXTENSIONS]),
        ("cu124-torch25", {EXTENSIONS: "x"}, []),
    ],
    ids=["an optional package", "optional extensions", "extensions that it never had"],
)
def test_an_image_may_lack_only_what_the_matrix_calls_optional(
    name: str, label: dict[str, str], believed: list[str]
) -> None:
    labels = {"dev.truetag.missing": json.dumps(label)}

    missing = image_labels.declared_missing(image(name), labels)

    assert missing == {key: label[key] for key in believed}


def test_a_damaged_label_declares_nothing_missing() -> None:
    labels = {"dev.truetag.missing": "no json"}

    assert image_labels.declared_missing(image("cu126-torch27"), labels) == {}


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("cu126-torch27", {"flash-attn": "no wheel"}),
        ("cu124-torch25-colossalai", {EXTENSIONS: "x"}),
        ("cu124-torch25", {}),
    ],
)
def test_what_an_image_lacks_is_read_back_from_its_label_and_is_no_pin(
    name: str, missing: dict[str, str]
) -> None:
    labels = image_labels.labels(image(name), BASE_CONTEXT, missing)

    assert image_labels.declared_missing(image(name), labels) == missing
    assert missing.keys().isdisjoint(json.loads(labels["dev.truetag.pins"]))


# --- build steps ----------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_a_quoted_value_has_one_meaning(value: str) -> None:
    quoted = templates.quoted(value)

    assert quoted[0] == quoted[-1] == '"'
    inside = quoted[1:-1]
    escaped = r'\\([\\"$])'
    without_escaped = re.sub(escaped, "\0", inside)
    assert not {'"', "$", "\\"} & {*without_escaped}
    assert re.sub(escaped, r"\1", inside) == value


def test_an_image_for_all_architectures_is_not_pruned() -> None:
    context = context_of(image("cu126-torch27"))

    assert not [path for path in context if path.startswith("pruner/")]
    assert b"pruner" not in context["Dockerfile"]


def test_an_image_for_one_architecture_is_pruned_in_the_step_that_installs() -> None:
    context = context_of(image("cu126-torch27-sm90"))

    steps = context["Dockerfile"].decode().split("\nRUN ")
    (step,) = (text for text in steps if "install.sh" in text and "torch.txt" in text)
    install = step.index("sh /run/scripts/install.sh")
    prune = step.index("-B /run/pruner")
    normalise = step.index("normalise_timestamps.py 1")
    assert install < prune < normalise


def test_images_for_one_architecture_share_nvidias_libraries_with_their_parent() -> None:
    parent = stages(context_of(image("cu126-torch27")))
    for_sm90 = stages(context_of(image("cu126-torch27-sm90")))

    for name in ("system", "tools", "cuda"):
        assert parent[name] == for_sm90[name], name


@pytest.mark.parametrize(
    "name",
    [
        "cu126-torch27",
        "cu126-torch27-sm90",
        "cu130-torch211-devel",
        "cu128-torch28-axolotl-multigpu",
    ],
)
def test_every_step_notes_what_is_there_and_ends_by_normalising_timestamps(name: str) -> None:
    context = context_of(image(name), suite={"claims.json": b"{}"})
    ends = r"&& \S+ -I -S -B /run/scripts/normalise_timestamps\.py \d+$"
    begins = r"RUN (--mount=\S+ +)+sh /run/scripts/record_change_times\.sh +&& "
    stages_outside_the_image = ("tools", "toolkit")

    for stage, text in stages(context).items():
        if stage in stages_outside_the_image:
            continue
        for step in text.replace("\\\n", " ").splitlines():
            # COPY and ADD would date the folders on the way.
            assert not step.startswith(("COPY", "ADD")), stage
            if step.startswith("RUN "):
                assert re.match(begins, step), stage
                assert re.search(ends, step), stage
                # What is noted stays in no layer.
                assert "--mount=type=tmpfs,target=/run " in step, stage


# --- linux/arm64 ----------------------------------------------------------------------------------


def test_the_installer_of_an_arm64_image_is_for_the_machine_that_builds() -> None:
    context = context_of(image("cu130-torch211-arm64"))

    tools = stages(context)["tools"]
    assert "ARG BUILDARCH" in tools
    assert 'installer.sh /opt/venv/bin/python "$BUILDARCH"' in tools
    assert b"musllinux" in context["scripts/installer.sh"]
    assert 'dev.truetag.platform="linux/arm64"' in context["Dockerfile"].decode()


def test_an_amd64_image_has_nothing_of_other_platforms() -> None:
    context = context_of(image("cu130-torch211"))

    assert "scripts/installer.sh" not in context
    for text in (b"BUILDARCH", b"dev.truetag.platform", b"arm64"):
        assert text not in context["Dockerfile"]
