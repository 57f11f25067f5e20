"""Locks of images whose torch only PyTorch's own index has.

The real uv resolves them from two indexes of that shape on loopback.
"""

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from images.commands import common
from images.commands.lock import lock
from images.config.matrix import Sources
from images.config.names import Minor
from images.config.paths import CHECKOUT, Workspace
from images.errors import UserError
from images.locking import debian, inputs, lock_file, resolve, wheel_records
from images.locking.lock_file import Status
from images.planning import plan
from images.planning.image import Image, Pin
from tests.support.sources import SOURCES as REAL
from tests.support.sources import image as sources_image
from tests.support.torch_index import DEFAULT, Indexes, indexes, known_python, uv_asks_once

__all__ = ["indexes", "known_python", "uv_asks_once"]

LOCKS_WITH_AN_INDEX_OF_THEIR_OWN = [
    planned.image.lock_name for planned in plan.plan(REAL) if planned.image and planned.image.index
]


def sources_with(indexes: Indexes) -> Sources:
    """Return the matrix as it is, with PyTorch's index here."""
    return _sources_with_index(indexes.torch)


@cache
def _sources_with_index(address: str) -> Sources:
    return replace(REAL, facts=REAL.facts.model_copy(update={"torch_index": address}))


def images_with(indexes: Indexes) -> list[Image]:
    return [planned.image for planned in plan.plan(sources_with(indexes)) if planned.image]


def image_with(indexes: Indexes, name: str) -> Image:
    return sources_image(name, sources_with(indexes))


def torch_of(image: Image) -> Pin:
    torch = image.pin("torch")
    assert torch is not None
    return torch


# --- what the indexes have ------------------------------------------------------------------------


def stock(indexes: Indexes, *images: Image) -> None:
    """Fill the default index and PyTorch's with what these images need."""
    indexes.add(DEFAULT, "fsspec", "2026.1")
    for requirement in (*inputs.TOOLS, *inputs.BUILD_TOOLS):
        indexes.add(DEFAULT, *requirement.split("=="))

    # Images of the default index come last: their torch replaces one that must not be taken.
    for image in sorted(images, key=lambda image: not image.index):
        _stock_packages(indexes, image)
        _stock_torch(indexes, image)


def _stock_packages(indexes: Indexes, image: Image) -> None:
    """Add everything that an image pins, but torch, to the default index."""
    for pin in image.toolkit:
        indexes.add(DEFAULT, pin.name, pin.version)
    for pin in image.pins:
        if pin.locked and pin.name != "torch":
            requirements = ["torch"] if pin.name == "xformers" else []
            indexes.add(DEFAULT, pin.name, pin.version, *requirements)
        for needed in pin.needs:
            indexes.add(DEFAULT, needed, "1.0")


def _stock_torch(indexes: Indexes, image: Image) -> None:
    """Add an image's torch to its index; beside PyTorch's, also what must not be taken there."""
    torch = torch_of(image)
    version = f"{torch.version}+{torch.local}" if torch.local else torch.version
    index = f"/whl/cu{image.wheel_cuda.digits}" if image.index else DEFAULT
    indexes.add(index, "torch", version, stock_runtime(indexes, image), "fsspec")
    if not image.index:
        return

    # The default index has the same release of torch for another CUDA.
    indexes.add(DEFAULT, "torch", torch.version, "nvidia-cuda-runtime-cu11==11.8.89")
    # PyTorch's index has older releases of what torch requires: the newest of both is taken.
    indexes.add(index, "fsspec", "2024.6.1")
    torchao = image.pin("torchao")
    if torchao:
        indexes.add(index, "torchao", f"{torchao.version}+{torch.local}")


def stock_runtime(indexes: Indexes, image: Image) -> str:
    """Add the CUDA runtime of an image's torch, and return the requirement of it."""
    # From CUDA 13.0 on, the package's name has no CUDA major.
    suffix = f"-cu{image.wheel_cuda.major}" if image.wheel_cuda < Minor(13, 0) else ""
    name = f"nvidia-cuda-runtime{suffix}"
    version = f"{image.wheel_cuda}.1"
    for pin in image.toolkit:
        if pin.name == name and Minor.parse(pin.version) == image.wheel_cuda:
            version = pin.version
    indexes.add(DEFAULT, name, version)
    return f"{name}=={version}"


def write_locks(indexes: Indexes, folder: Path, *images: Image) -> None:
    update = resolve.update(images, images_with(indexes), folder=folder)
    lock_file.write(update.files, folder)


# --- resolving ------------------------------------------------------------------------------------


def test_an_image_of_each_of_pytorchs_indexes_gets_its_lock(
    indexes: Indexes, tmp_path: Path
) -> None:
    """Of each CUDA, the images with the oldest and the newest torch."""
    with_own_index = [image for image in images_with(indexes) if image.index]
    names = sorted({image.lock_name for image in with_own_index})
    assert names == sorted(LOCKS_WITH_AN_INDEX_OF_THEIR_OWN)
    images_by_index: dict[str, list[Image]] = {}
    for image in with_own_index:
        images_by_index.setdefault(str(image.index), []).append(image)
    assert len(images_by_index) >= 4
    to_lock: list[Image] = []
    for images_of_index in images_by_index.values():
        for image in (images_of_index[0], images_of_index[-1]):
            if image not in to_lock:
                to_lock.append(image)
    stock(indexes, *to_lock)
    for image in to_lock:
        assert lock_file.state(image, tmp_path).status is Status.MISSING

    write_locks(indexes, tmp_path, *to_lock)

    for image in to_lock:
        assert lock_file.state(image, tmp_path) == (Status.PRESENT, ())
        versions = lock_file.read(image, tmp_path).versions(image.layers)
        assert versions["torch"] == f"{torch_of(image).version}+cu{image.wheel_cuda.digits}"
        assert versions["fsspec"] == "2026.1"
    # A torch wheel has gigabytes: only its metadata is read, once for each.
    assert not [path for path in indexes.asked(".whl") if "/torch-" in path]
    metadata_of_torch = {path for path in indexes.asked(".metadata") if "/torch-" in path}
    torch_wheels = {(image.index, image.name.torch) for image in to_lock}
    assert len(metadata_of_torch) == len(torch_wheels)


def test_the_lock_has_the_hash_of_the_wheel_for_the_images_own_cuda(
    indexes: Indexes, tmp_path: Path
) -> None:
    cu128 = image_with(indexes, "cu128-torch27")
    stock(indexes, cu128)
    runtime = stock_runtime(indexes, cu128)
    digest = indexes.add("/whl/cu128", "torch", "2.7.1+cu128", runtime)
    other_digest = indexes.add(DEFAULT, "torch", "2.7.1", "nvidia-cuda-runtime-cu11==11.8.89")

    write_locks(indexes, tmp_path, cu128)

    text = (tmp_path / "cu128-torch27" / "torch.txt").read_text()
    assert f"torch==2.7.1+cu128 \\\n    --hash=sha256:{digest}\n" in text
    assert other_digest not in text
    assert "http" not in text
    record = json.loads((tmp_path / "cu128-torch27" / "lock.json").read_text())
    assert record["index"] == f"http://{indexes.server.host}/whl/cu128"
    assert record["layers"]["torch"][0] == "torch==2.7.1+cu128"


def test_a_wheel_without_a_hash_on_the_index_is_downloaded_and_hashed(
    indexes: Indexes, tmp_path: Path
) -> None:
    cu128 = image_with(indexes, "cu128-torch27")
    stock(indexes, cu128)
    digest = indexes.add("/whl/cu128", "torchao", "0.11.0+cu128", algorithm="")

    write_locks(indexes, tmp_path, cu128)

    assert lock_file.read(cu128, tmp_path).versions(["kernels"])["torchao"] == "0.11.0+cu128"
    assert f"--hash=sha256:{digest}" in (tmp_path / "cu128-torch27" / "kernels.txt").read_text()


def test_a_second_lock_is_the_same(indexes: Indexes, tmp_path: Path) -> None:
    cu128 = image_with(indexes, "cu128-torch27")
    stock(indexes, cu128)
    write_locks(indexes, tmp_path, cu128)

    again = resolve.update([cu128], images_with(indexes), folder=tmp_path)

    assert lock_file.differing(again.files, tmp_path) == ()


@pytest.mark.parametrize(
    ("package", "version", "cause"),
    [
        ("torchao", "0.11.0+cpu", "cpu is a .* wants CUDA 12.8"),
        ("torchao", "0.11.0+cu126", "cu126 is a .* wants CUDA 12.8"),
        ("torchao", "0.11.0+rocm6.3", "rocm6.3 is a .* wants CUDA 12.8"),
        ("torch", "2.7.1+cu126", r"no set of versions fits.*torch==2.7.1\+cu128"),
    ],
)
def test_a_build_of_a_package_for_another_cuda_is_refused(
    indexes: Indexes, package: str, version: str, cause: str
) -> None:
    cu128 = image_with(indexes, "cu128-torch27")
    stock(indexes, cu128)
    indexes.links[f"/whl/cu128/{package}/"].clear()
    requirements = ["nvidia-cuda-runtime-cu12==12.6.77"] if package == "torch" else []
    indexes.add("/whl/cu128", package, version, *requirements)

    with pytest.raises(UserError, match=cause):
        resolve.resolve(cu128)


# --- the verb `lock` ------------------------------------------------------------------------------


def use_small_matrix(
    names: list[str],
    indexes: Indexes,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    torch_index: str = "",
) -> Sources:
    """Let verbs use a matrix of a few images that the indexes have, with locks in `folder`."""
    sources = sources_with(indexes)
    rows = [row for row in sources.matrix.images if row.name in names]
    facts = sources.facts
    if torch_index:
        facts = facts.model_copy(update={"torch_index": torch_index})
    small = replace(
        sources,
        facts=facts,
        matrix=sources.matrix.model_copy(update={"images": rows}),
        workspace=Workspace(folder / "matrix.yaml"),
    )
    monkeypatch.setattr(common, "sources", lambda _matrix: small)
    # Another test locks Debian's packages; apt takes longer than all else here.
    shutil.copytree(CHECKOUT.locks / debian.FOLDER, small.workspace.locks / debian.FOLDER)
    stock(indexes, *(planned.image for planned in plan.plan(small) if planned.image))
    return small


def lock_names(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in (folder / "locks").glob("*/lock.json"))


THREE_IMAGES = ["cu126-torch27", "cu126-torch28", "cu128-torch27"]


def test_without_selectors_every_accepted_image_and_base_is_locked(
    indexes: Indexes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = use_small_matrix(THREE_IMAGES, indexes, monkeypatch, tmp_path)
    shutil.rmtree(small.workspace.locks / debian.FOLDER)

    lock([])

    assert (small.workspace.locks / debian.FOLDER / "bookworm-amd64.txt").is_file()
    assert "3 locks: " in capsys.readouterr().out
    assert lock_names(tmp_path) == THREE_IMAGES
    lock([], check=True)
    assert "all RECORDs are known" in capsys.readouterr().out


def test_a_check_names_a_record_that_nobody_has_read_and_writes_nothing(
    indexes: Indexes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = use_small_matrix(["cu126-torch27"], indexes, monkeypatch, tmp_path)
    lock([])
    table = wheel_records.read(small.workspace.locks)
    del table["torch 2.7.1"]
    without_torch = wheel_records.serialize(table)
    file = small.workspace.locks / wheel_records.FILE
    file.write_bytes(without_torch)

    cause = r"records\.json: this table lacks the RECORD of torch 2\.7\.1"
    with pytest.raises(UserError, match=cause):
        lock([], check=True)

    assert file.read_bytes() == without_torch


def test_an_image_for_one_architecture_has_its_parents_lock(
    indexes: Indexes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = use_small_matrix(["cu126-torch27"], indexes, monkeypatch, tmp_path)
    for_sm90 = sources_image("cu126-torch27-sm90", small)
    indexes.add(DEFAULT, "torch", "2.7.1", stock_runtime(indexes, for_sm90), "fsspec")

    lock(["cu126-torch27-sm90"])

    assert lock_names(tmp_path) == ["cu126-torch27"]
    lock(["cu126-torch27-sm90"], check=True)


SILENT_INDEX = "http://localhost:9/whl/{variant}"


def test_images_of_an_index_that_does_not_answer_are_named_and_the_others_are_locked(
    indexes: Indexes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["cu126-torch27", "cu128-torch27", "cu129-torch28"]
    use_small_matrix(names, indexes, monkeypatch, tmp_path, torch_index=SILENT_INDEX)

    with pytest.raises(UserError) as error:
        lock([])

    (problem,) = error.value.problems
    assert (problem.where, error.value.code) == ("localhost", 1)
    assert "2 images were not locked: cu128-torch27, cu129-torch28" in problem.cause
    assert problem.then.startswith("give `nox -s lock` again on a machine that reaches this index")
    assert "1 lock: " in capsys.readouterr().out
    assert lock_names(tmp_path) == ["cu126-torch27"]


def test_a_named_image_of_an_index_that_does_not_answer_is_an_error(
    indexes: Indexes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_matrix(["cu128-torch27"], indexes, monkeypatch, tmp_path, torch_index=SILENT_INDEX)

    with pytest.raises(UserError, match=r"the package index localhost:[0-9]+ can't be reached"):
        lock(["cu128-torch27"])
