"""Contexts: pure, shared below, different on top, and nothing that a shell or Dockerfile would read otherwise."""

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


def context(
    wanted: Image,
    locks: Mapping[str, bytes] | None = None,
    base: BaseContext = BASE_CONTEXT,
    **extras: Any,
) -> dict[str, bytes]:
    """The files of an image's context but for wheels; by default of its own lock."""
    files = render.render(
        wanted, locks or lock_file.read(wanted, CHECKOUT.locks).files, base, **extras
    )
    return {path: content for path, content in files.items() if isinstance(content, bytes)}


def names(lock: bytes) -> list[str]:
    return re.findall(r"^([a-z0-9-]+)==", lock.decode(), re.MULTILINE)


def stages(dockerfile: bytes) -> dict[str, str]:
    """Stage name -> its text; the last, unnamed one is `image`."""
    parts = re.split(r"^# ---- (?:the )?(\w+).*\n", dockerfile.decode(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_generated_files_are_current() -> None:
    files = generate.files(SOURCES)
    old = [path for path, content in files.items() if (ROOT / path).read_bytes() != content]
    assert files and not old, "`nox -s generate` renews them"


def test_images_of_one_torch_share_its_layers_byte_for_byte() -> None:
    one, other = context(image("cu124-torch25")), context(image("cu126-torch25"))
    assert other == context(image("cu126-torch25")), "and so does the same image"
    for name in ("system", "tools", "cuda", "torch", "kernels"):
        assert stages(one["Dockerfile"])[name] == stages(other["Dockerfile"])[name]
    for path in (
        "locks/tools.txt",
        "locks/cuda.txt",
        "locks/torch.txt",
        "locks/kernels.txt",
        "scripts/install.sh",
    ):
        assert one[path] == other[path]


def test_a_devel_toolkit_of_cuda_12_is_completed_from_debians_packages() -> None:
    files = context(image("cu124-torch26-devel"))
    toolkit = stages(files["Dockerfile"])["toolkit"]
    assert "toolkit.sh /opt/venv/bin/python 12.4 runtime" in toolkit
    assert "sh /run/scripts/debian_toolkit.sh 12.4 trixie" in toolkit
    assert "devel.sh /opt/venv/bin/python 12.4" in files["Dockerfile"].decode()
    for name in ("cu124-torch26", "cu130-torch211-devel"):
        assert b"debian_toolkit" not in context(image(name))["Dockerfile"]
    plain = stages(context(image("cu124-torch26"))["Dockerfile"])
    shared = stages(files["Dockerfile"])
    assert all(
        plain[name] == shared[name] for name in ("system", "tools", "cuda", "torch", "kernels")
    )


def test_moving_liger_changes_one_small_stage() -> None:
    old = image("cu126-torch27")
    pins = tuple(
        dataclasses.replace(pin, version="0.6.3") if pin.name == "liger-kernel" else pin
        for pin in old.pins
    )
    before = stages(context(old)["Dockerfile"])
    locks = dict(lock_file.read(old, CHECKOUT.locks).files)
    locks["light.txt"] = locks["light.txt"].replace(b"liger-kernel==0.6.4", b"liger-kernel==0.6.3")
    after = stages(context(dataclasses.replace(old, pins=pins), locks)["Dockerfile"])
    # The comment above a stage names its packages; the instructions of `light` read its lock.
    assert {name for name in before if before[name] != after[name]} == {"image"}


def test_the_last_stage_alone_sees_environment_and_labels_and_the_largest_leave_no_wheels_in_the_cache() -> (
    None
):
    found = stages(context(image("cu126-torch25"))["Dockerfile"])
    assert {name for name, text in found.items() if "ENV " in text or "LABEL " in text} == {"image"}
    kept = {name for name, text in found.items() if "id=truetag-uv" in text}
    assert kept == {"toolkit", "kernels", "libraries", "light"}


def test_packages_that_the_base_keeps_are_not_installed() -> None:
    wanted = image("cu126-torch27")
    kept = dataclasses.replace(
        BASE_CONTEXT,
        python="3.11.2",
        executable="/x/bin/python",
        installed={"torch": "2.7.1", "numpy": "1"},
    )
    text = b"".join(
        one for path, one in context(wanted, base=kept).items() if path.startswith("locks/")
    )
    assert {"triton", "xformers", "uv"} <= {*names(text)} and not {"torch", "numpy"} & {
        *names(text)
    }
    assert all(
        line.strip().startswith((b"#", b"--hash")) or b"==" in line
        for line in text.splitlines()
        if line
    )


EXTENSIONS = "colossalai extensions"


@pytest.mark.parametrize(
    ("name", "said", "excused"),
    [
        ("cu126-torch27", {"torch": "not today", "flash-attn": "no wheel"}, ["flash-attn"]),
        ("cu124-torch25-colossalai", {EXTENSIONS: "x", "torch extensions": "x"}, [EXTENSIONS]),
        ("cu124-torch25", {EXTENSIONS: "x"}, []),
    ],
)
def test_an_image_says_what_it_lacks_and_can_excuse_itself_only_from_what_the_matrix_calls_optional(
    name: str, said: dict[str, str], excused: list[str]
) -> None:
    labels = {"dev.truetag.missing": json.dumps(said)}
    assert image_labels.declared_missing(image(name), labels) == {key: said[key] for key in excused}
    assert image_labels.declared_missing(image(name), {"dev.truetag.missing": "no json"}) == {}
    lacking = {key: said[key] for key in excused}
    written = image_labels.labels(image(name), BASE_CONTEXT, lacking)
    assert not lacking.keys() & json.loads(written["dev.truetag.pins"]).keys()
    assert image_labels.declared_missing(image(name), written) == lacking


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_quoted_values_have_one_meaning(value: str) -> None:
    quoted = templates.quoted(value)
    assert quoted[0] == quoted[-1] == '"'
    body = re.sub(r'\\([\\"$])', "\0", quoted[1:-1])
    assert '"' not in body and "$" not in body and "\\" not in body
    assert re.sub(r'\\([\\"$])', r"\1", quoted[1:-1]) == value


def test_the_variants_own_index_is_asked_only_for_its_torch() -> None:
    wanted = image("cu126-torch27")
    other = dataclasses.replace(wanted, index="https://example.invalid/whl/cu128")
    assert "--index" not in stages(context(wanted)["Dockerfile"])["torch"]
    locks = lock_file.read(wanted, CHECKOUT.locks).files
    assert (
        "--index https://example.invalid/whl/cu128"
        in stages(context(other, locks)["Dockerfile"])["torch"]
    )


def test_only_images_for_one_arch_are_pruned_and_in_the_step_that_installs() -> None:
    plain, pruned = context(image("cu126-torch27")), context(image("cu126-torch27-sm90"))
    assert not [path for path in plain if path.startswith("pruner/")]
    assert b"pruner" not in plain["Dockerfile"]
    steps = pruned["Dockerfile"].decode().split("\nRUN ")
    (step,) = (one for one in steps if "install.sh" in one and "torch.txt" in one)
    order = ("sh /run/scripts/install.sh", "-B /run/pruner", "normalise_timestamps.py 1")
    assert [*map(step.index, order)] == sorted(map(step.index, order))
    before, after = stages(plain["Dockerfile"]), stages(pruned["Dockerfile"])
    assert all(before[name] == after[name] for name in ("system", "tools", "cuda")), (
        "NVIDIA's libraries are shared"
    )


def test_every_step_of_an_image_notes_what_stands_and_ends_by_normalising_timestamps() -> None:
    for name in (
        "cu126-torch27",
        "cu126-torch27-sm90",
        "cu130-torch211-devel",
        "cu128-torch28-axolotl-multigpu",
    ):
        for stage, text in stages(
            context(image(name), suite={"claims.json": b"{}"})["Dockerfile"]
        ).items():
            if stage in ("tools", "toolkit"):  # not in the image
                continue
            steps = text.replace("\\\n", " ").splitlines()
            runs = [step for step in steps if step.startswith("RUN ")]
            ends = r"&& \S+ -I -S -B /run/scripts/normalise_timestamps\.py \d+$"
            assert all(re.search(ends, run) for run in runs), (name, stage)
            noted = r"RUN (--mount=\S+ +)+sh /run/scripts/record_change_times\.sh +&& "
            assert all(re.match(noted, run) for run in runs), (name, stage)
            assert all("--mount=type=tmpfs,target=/run " in run for run in runs), (
                "the notes stay in no layer"
            )
            assert not [step for step in steps if step.startswith(("COPY", "ADD"))], (
                "they date the folders on the way"
            )


def test_a_wheel_with_compiled_extensions_is_installed_in_place_of_the_locks_source(
    tmp_path: Path,
) -> None:
    wanted, wheel = (
        image("cu124-torch25-colossalai"),
        "colossalai-0.5.0-cp311-cp311-linux_x86_64.whl",
    )
    plain, extended = context(wanted), context(wanted, wheels={wheel: tmp_path})
    step = f"install.sh /opt/venv/bin/python /run/wheels/{wheel}"
    assert step in stages(extended["Dockerfile"])["profile"]
    before, after = (names(files["locks/profile.txt"]) for files in (plain, extended))
    assert [one for one in before if one not in after] == ["colossalai"] and len(after) == len(
        before
    ) - 1


def test_an_arm64_images_installer_is_of_the_machine_that_builds() -> None:
    files = context(image("cu130-torch211-arm64"))
    tools = stages(files["Dockerfile"])["tools"]
    assert "ARG BUILDARCH" in tools and 'installer.sh /opt/venv/bin/python "$BUILDARCH"' in tools
    assert b"musllinux" in files["scripts/installer.sh"]
    assert 'dev.truetag.platform="linux/arm64"' in files["Dockerfile"].decode()
    plain = context(image("cu130-torch211"))
    assert "scripts/installer.sh" not in plain
    assert not any(
        word in plain["Dockerfile"] for word in (b"BUILDARCH", b"dev.truetag.platform", b"arm64")
    )
