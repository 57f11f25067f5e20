"""Locks of images whose torch PyTorch's own index alone has: resolved by the real uv from an index of that shape."""

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
from images.context.pruner import key
from images.errors import UserError
from images.locking import debian, inputs, lock_file, resolve, wheel_records
from images.locking.lock_file import Status
from images.planning import plan
from images.planning.image import Image
from tests.support import fatbins
from tests.support.fatbins import Code
from tests.support.sources import SOURCES as REAL
from tests.support.sources import image as sources_image
from tests.support.torch_index import DEFAULT, Indexes, indexes, known_python, uv_asks_once

__all__ = ["indexes", "known_python", "uv_asks_once"]

TORCH = "/whl/{}"
INDEX_OF_THEIR_OWN = [
    one.image.lock_name for one in plan.plan(REAL) if one.image and one.image.index
]


def sources(indexes: Indexes) -> Sources:
    """The matrix as it is, with PyTorch's index here."""
    return _with_index(indexes.torch)


@cache
def _with_index(address: str) -> Sources:
    return replace(REAL, facts=REAL.facts.model_copy(update={"torch_index": address}))


def images(indexes: Indexes) -> list[Image]:
    return [one.image for one in plan.plan(sources(indexes)) if one.image]


def image(indexes: Indexes, name: str) -> Image:
    return sources_image(name, sources(indexes))


def stock(indexes: Indexes, *wanted: Image) -> None:
    """What the two indexes have for these images. PyTorch's has builds of torchao, too, and its own files of others."""
    indexes.add(DEFAULT, "fsspec", "2026.1")
    for requirement in (*inputs.TOOLS, *inputs.BUILD_TOOLS):
        indexes.add(DEFAULT, *requirement.split("=="))
    for each in sorted(
        wanted, key=lambda one: not one.index
    ):  # a default torch replaces the one not to be taken
        folder = TORCH.format(f"cu{each.wheel_cuda.digits}") if each.index else DEFAULT
        for pin in each.toolkit:
            indexes.add(DEFAULT, pin.name, pin.version)
        for pin in each.pins:
            if pin.locked and pin.name != "torch":
                indexes.add(
                    DEFAULT, pin.name, pin.version, *(["torch"] if pin.name == "xformers" else [])
                )
        for need in (need for pin in each.pins for need in pin.needs):
            indexes.add(DEFAULT, need, "1.0")
        torch = each.pin("torch")
        assert torch is not None
        version = f"{torch.version}{f'+{torch.local}' if torch.local else ''}"
        indexes.add(folder, "torch", version, runtime(indexes, each), "fsspec")
        if each.index:
            # The default index has the same release for another CUDA: a torch that must not be taken.
            indexes.add(DEFAULT, "torch", torch.version, "nvidia-cuda-runtime-cu11==11.8.89")
            # What torch needs lies there too, in older releases: the newest of both indexes is taken.
            indexes.add(folder, "fsspec", "2024.6.1")
            if torchao := each.pin("torchao"):
                indexes.add(folder, "torchao", f"{torchao.version}+{torch.local}")


def runtime(indexes: Indexes, each: Image) -> str:
    suffix = f"-cu{each.wheel_cuda.major}" if each.wheel_cuda < Minor(13, 0) else ""
    own = next((pin for pin in each.toolkit if pin.name == f"nvidia-cuda-runtime{suffix}"), None)
    same = own and Minor.parse(own.version) == each.wheel_cuda
    version = own.version if own and same else f"{each.wheel_cuda}.1"
    indexes.add(DEFAULT, f"nvidia-cuda-runtime{suffix}", version)
    return f"nvidia-cuda-runtime{suffix}=={version}"


def locked(indexes: Indexes, folder: Path, *wanted: Image) -> None:
    lock_file.write(resolve.update(wanted, images(indexes), folder=folder)[0], folder)


def test_an_image_of_each_of_pytorchs_indexes_gets_its_lock(
    indexes: Indexes, tmp_path: Path
) -> None:
    """Of each CUDA the first torch and the last."""
    theirs = [image for image in images(indexes) if image.index]
    assert sorted({image.lock_name for image in theirs}) == sorted(INDEX_OF_THEIR_OWN)
    rows = [
        [image for image in theirs if image.index == index]
        for index in sorted({str(one.index) for one in theirs})
    ]
    wanted = [
        image
        for row in rows
        for image in {str(one.name): one for one in (row[0], row[-1])}.values()
    ]
    assert len(rows) >= 4
    stock(indexes, *wanted)
    assert {lock_file.state(image, tmp_path)[0] for image in wanted} == {Status.MISSING}
    locked(indexes, tmp_path, *wanted)
    for image in wanted:
        assert lock_file.state(image, tmp_path) == (Status.PRESENT, ())
        versions = lock_file.read(image, tmp_path).versions(image.layers)
        torch = image.pin("torch")
        assert (
            torch is not None
            and versions["torch"] == f"{torch.version}+cu{image.wheel_cuda.digits}"
        )
        assert versions["fsspec"] == "2026.1"
    assert not [path for path in indexes.asked(".whl") if "/torch-" in path], (
        "a torch wheel has gigabytes"
    )
    asked = {path for path in indexes.asked(".metadata") if "/torch-" in path}
    assert len(asked) == len({(image.index, image.name.torch) for image in wanted})


def test_the_hash_is_that_of_the_variants_own_wheel_and_a_second_lock_the_same(
    indexes: Indexes, tmp_path: Path
) -> None:
    wanted = image(indexes, "cu128-torch27")
    stock(indexes, wanted)
    unhashed = indexes.add(
        "/whl/cu128", "torchao", "0.11.0+cu128", algorithm=""
    )  # it is fetched and hashed
    digest = indexes.add("/whl/cu128", "torch", "2.7.1+cu128", runtime(indexes, wanted))
    other = indexes.add(DEFAULT, "torch", "2.7.1", "nvidia-cuda-runtime-cu11==11.8.89")
    locked(indexes, tmp_path, wanted)
    text = (tmp_path / "cu128-torch27" / "torch.txt").read_text()
    assert f"torch==2.7.1+cu128 \\\n    --hash=sha256:{digest}\n" in text and other not in text
    assert "http" not in text
    record = json.loads((tmp_path / "cu128-torch27" / "lock.json").read_text())
    assert record["index"] == f"http://{indexes.server.host}/whl/cu128"
    assert record["layers"]["torch"][0] == "torch==2.7.1+cu128"
    assert lock_file.read(wanted, tmp_path).versions(["kernels"])["torchao"] == "0.11.0+cu128"
    assert f"--hash=sha256:{unhashed}" in (tmp_path / "cu128-torch27" / "kernels.txt").read_text()
    again, _ = resolve.update([wanted], images(indexes), folder=tmp_path)
    assert lock_file.differing(again, tmp_path) == ()


@pytest.mark.parametrize(
    ("package", "version", "said"),
    [
        *(
            ("torchao", f"0.11.0+{one}", f"{one} is a .* wants CUDA 12.8")
            for one in ("cpu", "cu126", "rocm6.3")
        ),
        ("torch", "2.7.1+cu126", r"no set of versions fits.*torch==2.7.1\+cu128"),
    ],
)
def test_another_variants_build_of_a_package_is_refused(
    indexes: Indexes, package: str, version: str, said: str
) -> None:
    wanted = image(indexes, "cu128-torch27")
    stock(indexes, wanted)
    indexes.links[f"/whl/cu128/{package}/"].clear()
    indexes.add(
        "/whl/cu128",
        package,
        version,
        *(["nvidia-cuda-runtime-cu12==12.6.77"] if package == "torch" else []),
    )
    with pytest.raises(UserError, match=said):
        resolve.resolve(wanted)


def some(
    names: list[str],
    indexes: Indexes,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    index: str = "",
) -> Sources:
    """A matrix of a few images that the indexes have all of, with the locks' folder elsewhere."""
    own = sources(indexes)
    rows = [row for row in own.matrix.images if row.name in names]
    facts = own.facts.model_copy(update={"torch_index": index}) if index else own.facts
    matrix = own.matrix.model_copy(update={"images": rows})
    few = replace(own, facts=facts, matrix=matrix, workspace=Workspace(folder / "matrix.yaml"))
    monkeypatch.setattr(common, "sources", lambda _matrix: few)
    # What is locked of Debian is another's test; apt takes longer than all else here.
    shutil.copytree(CHECKOUT.locks / debian.FOLDER, few.workspace.locks / debian.FOLDER)
    stock(indexes, *(one.image for one in plan.plan(few) if one.image))
    return few


def test_without_selectors_every_accepted_image_is_locked_and_a_check_names_what_nobody_has_read(
    indexes: Indexes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["cu126-torch27", "cu126-torch28", "cu128-torch27"]
    few = some(names, indexes, monkeypatch, tmp_path)
    shutil.rmtree(few.workspace.locks / debian.FOLDER)
    lock([])
    assert (few.workspace.locks / debian.FOLDER / "bookworm-amd64.txt").is_file()
    assert "3 locks: " in capsys.readouterr().out
    assert sorted(path.parent.name for path in (tmp_path / "locks").glob("*/lock.json")) == names
    lock([], check=True)
    assert "all RECORDs are known" in capsys.readouterr().out
    table = wheel_records.read(few.workspace.locks)
    del table["torch 2.7.1"]
    file = few.workspace.locks / wheel_records.FILE
    file.write_bytes(without := wheel_records.serialize(table))
    with pytest.raises(
        UserError, match=r"records\.json: does not have the RECORD of torch 2\.7\.1"
    ):
        lock([], check=True)
    assert file.read_bytes() == without


def test_the_lock_of_an_image_for_one_arch_is_its_parents_with_what_the_pruner_leaves(
    indexes: Indexes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, name = some(["cu126-torch27"], indexes, monkeypatch, tmp_path), "cu126-torch27-sm90"
    wanted = sources_image(name, few)
    code = (Code(arch=arch, kernels={"kernel": 512}) for arch in (80, 90))
    library, needs = fatbins.library(fatbins.region(*code)), (runtime(indexes, wanted), "fsspec")
    digest = indexes.add(DEFAULT, "torch", "2.7.1", *needs, library=library)
    lock([name])
    assert [path.parent.name for path in (tmp_path / "locks").glob("*/lock.json")] == [
        "cu126-torch27"
    ]
    table = wheel_records.read(few.workspace.locks)
    row = table["torch 2.7.1"][digest]
    assert wanted.pruning and row.pruned.keys() == {key(wanted.pruning)}
    assert row.pruned[key(wanted.pruning)] != row.record, "the library has less in it"
    lock([name], check=True)
    table["torch 2.7.1"] = {digest: replace(row, pruned={})}
    (few.workspace.locks / wheel_records.FILE).write_bytes(wheel_records.serialize(table))
    with pytest.raises(UserError, match=r"does not have the RECORD of torch 2\.7\.1"):
        lock([name], check=True)


def test_where_pytorchs_index_is_silent_the_others_are_locked_and_it_is_said(
    indexes: Indexes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["cu126-torch27", "cu128-torch27", "cu129-torch28"]
    some(names, indexes, monkeypatch, tmp_path, index="http://localhost:9/whl/{variant}")
    with pytest.raises(UserError) as caught:
        lock([])
    (problem,) = caught.value.problems
    assert (problem.where, caught.value.code) == ("localhost", 1)
    assert "2 images were not locked (cu128-torch27, cu129-torch28)" in problem.cause
    assert problem.then.startswith("`nox -s lock` where it answers")
    assert "1 lock: " in capsys.readouterr().out
    assert [
        path.name for path in (tmp_path / "locks").iterdir() if (path / "lock.json").exists()
    ] == ["cu126-torch27"]
    with pytest.raises(UserError, match="the package index localhost can't be reached"):
        lock(["cu128-torch27"])
