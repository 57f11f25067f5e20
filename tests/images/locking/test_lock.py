"""Locks, resolved by the real uv from an index of tiny wheels on loopback."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.config.names import Minor
from images.config.paths import CHECKOUT
from images.errors import UserError
from images.locking import inputs, lock_file, resolve, uv
from images.locking.inputs import Package, lock_inputs
from images.locking.lock_file import Status
from images.planning import plan
from images.planning.image import Image, Pin, Prebuilt
from tests.support.sources import SOURCES, image
from tests.support.torch_index import (
    DEFAULT,
    Indexes,
    indexes,
    known_python,
    make_wheel,
    uv_asks_once,
)

__all__ = ["indexes", "known_python", "uv_asks_once"]

FOREIGN = ("--index-url https://a.example/simple", "torch @ https://a.example/torch.whl", "-e .", "torch==2.5.1",
           "torch>=2.5 --hash=sha256:" + "0" * 64, "./torch.whl --hash=sha256:" + "0" * 64,
           "torch==2.5.1 --hash=md5:" + "0" * 32, "<<<<<<< ours")  # fmt: skip


@pytest.fixture
def stocked(indexes: Indexes, monkeypatch: pytest.MonkeyPatch) -> Indexes:
    """An index with a sound torch and what the images of this file pin."""
    monkeypatch.setattr(inputs, "TOOLS", ("installer==1.0",))
    for name, version, *needs in (
        ("installer", "1.0"),
        ("nvidia-cuda-nvcc-cu12", "12.6.85", "not-on-the-index"),
        ("nvidia-cuda-nvcc-cu12", "12.4.131"),
        (
            "torch",
            "2.5.1",
            "nvidia-cuda-runtime-cu12==12.4.127",
            "fsspec",
            "tomli; python_version<'3.11'",
        ),
        ("nvidia-cuda-runtime-cu12", "12.4.127"),
        ("fsspec", "2025.1", "aiohttp; extra == 'http'"),
        ("fsspec", "2026.1", "aiohttp; extra == 'http'"),
        ("aiohttp", "3.0"),
        ("tomli", "2.0"),
        ("numpy", "2.0"),
        ("xformers", "0.0.29", "torch==2.5.1", "numpy"),
        ("datasets", "4.5.0", "fsspec[http]<2026", "numpy"),
        ("liger-kernel", "0.6.4", "torch"),
    ):
        indexes.add(DEFAULT, name, version, *needs)
    return indexes


PINS = (
    Pin(name="torch", version="2.5.1", layer="torch"),
    Pin(name="xformers", version="0.0.29", layer="kernels"),
    Pin(name="flash-attn", version="2.8.3", layer="kernels", optional=True),
    Pin(name="datasets", version="4.5.0", layer="libraries"),
    Pin(name="liger-kernel", version="0.6.4", layer="light"),
)


def make_image(
    name: str = "cu126-torch25", pins: tuple[Pin, ...] = PINS, index: str | None = None
) -> Image:
    nvcc = "12.6.85" if name.startswith("cu126") else "12.4.131"
    toolkit = (Pin(name="nvidia-cuda-nvcc-cu12", version=nvcc, layer="toolkit"),)
    return dataclasses.replace(image(name), pins=pins, index=index, toolkit=toolkit, prebuilt=())


def repinned(**versions: str) -> tuple[Pin, ...]:
    """The pins with some versions moved (underscores stand for dashes)."""
    moved = {name.replace("_", "-"): version for name, version in versions.items()}
    return tuple(dataclasses.replace(pin, version=moved.get(pin.name, pin.version)) for pin in PINS)


def with_library(name: str, version: str) -> Image:
    return make_image(pins=(*PINS, Pin(name=name, version=version, layer="libraries")))


def names(packages: tuple[Package, ...]) -> list[str]:
    return [package.name for package in packages]


def causes(error: pytest.ExceptionInfo[UserError]) -> str:
    return "\n".join(problem.cause for problem in error.value.problems)


HEX = st.binary(min_size=32, max_size=32).map(bytes.hex)
"""Any sha256, in one choice: 64 characters are 64."""
package = st.builds(
    Package,
    name=st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,8}){0,2}", fullmatch=True),
    version=st.from_regex(
        r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}(rc1|\.post[0-9])?(\+cu1[0-9]{2})?", fullmatch=True
    ),
    hashes=st.lists(HEX, min_size=1, max_size=3).map(tuple),
)


@given(st.lists(package, max_size=5).map(tuple))
def test_parsing_is_the_inverse_of_printing(packages: tuple[Package, ...]) -> None:
    assert (
        lock_file.parse_requirements(lock_file.print_requirements(packages), "torch.txt")
        == packages
    )


@pytest.mark.parametrize("line", FOREIGN)
def test_a_file_with_anything_else_than_hashed_pins_is_refused(line: str) -> None:
    sound = lock_file.print_requirements([Package(name="numpy", version="2.0", hashes=("a" * 64,))])
    with pytest.raises(UserError) as error:
        lock_file.parse_requirements(
            sound + line.encode() + b"\n", str(CHECKOUT.locks / "x" / "torch.txt")
        )
    assert error.value.problems[0].where == "locks/x/torch.txt", "as it lies in the project"
    assert line[:40] in causes(error)


def test_each_package_is_in_the_lowest_layer_that_needs_it(stocked: Indexes) -> None:
    made = resolve.resolve(make_image())
    assert {layer: names(packages) for layer, packages in made.layers.items()} == {
        "torch": ["fsspec", "nvidia-cuda-runtime-cu12", "torch"],
        "kernels": ["numpy", "xformers"],
        "libraries": ["aiohttp", "datasets"],
        "light": ["liger-kernel"],
        "toolkit": ["nvidia-cuda-nvcc-cu12"],
        "tools": ["installer"],
    }
    assert made.versions(["torch"])["fsspec"] == "2025.1", (
        "one version of each package for the whole image"
    )
    made = resolve.resolve(with_library("numpy", "2.0"))
    assert names(made.layers["kernels"]) == ["xformers"], (
        "a pin is in its own layer even if a lower one needs it"
    )
    assert "numpy" in names(made.layers["libraries"])


@pytest.mark.parametrize(
    "algorithm", ["sha256", ""], ids=["of the index", "of a file that it gives none for"]
)
def test_hashes_are_those_of_the_wheels(stocked: Indexes, algorithm: str) -> None:
    digest = stocked.add(DEFAULT, "liger-kernel", "0.6.5", "torch", algorithm=algorithm)
    made = resolve.resolve(make_image(pins=repinned(liger_kernel="0.6.5")))
    assert made.layers["light"][0].hashes == (digest,)


def test_images_of_one_torch_share_files_byte_for_byte_and_no_address_reaches_one(
    stocked: Indexes,
) -> None:
    one, other = (
        resolve.resolve(make_image("cu126-torch25")),
        resolve.resolve(make_image("cu124-torch25")),
    )
    assert {name for name, content in one.files.items() if content != other.files[name]} == {
        "toolkit.txt"
    }
    content = b"".join(lock_file.serialize(one).values())
    assert stocked.default.encode() not in content and b"127.0.0.1" not in content


def test_a_find_links_folder_and_an_extra_index_are_not_seen(
    stocked: Indexes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "torch-2.5.1+cpu-py3-none-any.whl").write_bytes(make_wheel("torch", "2.5.1+cpu"))
    for name in (
        "UV_FIND_LINKS",
        "PIP_FIND_LINKS",
        "UV_INDEX",
        "UV_EXTRA_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
    ):
        monkeypatch.setenv(name, str(folder))
    assert resolve.resolve(make_image()).versions(["torch"])["torch"] == "2.5.1"


NO_CUDA = [("torch", "2.5.2", "fsspec"), ("xformers", "0.0.30")]
OTHER_CUDA = dataclasses.replace(make_image(), wheel_cuda=Minor(12, 6))


@pytest.mark.parametrize(
    ("added", "image", "cause"),
    [
        (
            [("torch", "2.5.1+cpu", "fsspec")],
            make_image(),
            "torch 2.5.1+cpu is a CPU build; the image wants CUDA 12.4",
        ),
        (
            NO_CUDA,
            make_image(pins=repinned(torch="2.5.2", xformers="0.0.30")),
            "torch 2.5.2 brings no CUDA runtime",
        ),
        ([], OTHER_CUDA, "brings nvidia-cuda-runtime-cu12 12.4.127; the image wants CUDA 12.6"),
        ([], with_library("fsspec", "2026.1"), "no set of versions fits. uv says: Because all"),
    ],
    ids=[
        "a mirror's CPU build",
        "a torch without CUDA",
        "a torch of another CUDA",
        "pins that clash",
    ],
)
def test_what_is_not_an_images_fails(
    stocked: Indexes, added: list[tuple[str, ...]], image: Image, cause: str
) -> None:
    for one in added:
        stocked.add(DEFAULT, *one)
    with pytest.raises(UserError) as error:
        resolve.resolve(image)
    assert cause in causes(error) and error.value.code == 2


def test_a_source_only_package_is_refused(stocked: Indexes) -> None:
    file = "deepspeed-0.18.2.tar.gz"
    stocked.links[f"{DEFAULT}/deepspeed/"] = {file: f'<a href="{file}">{file}</a>'}
    with pytest.raises(UserError) as error:
        resolve.resolve(with_library("deepspeed", "0.18.2"))
    assert "deepspeed==0.18.2 is published as source only" in causes(error)
    assert "optional" in error.value.problems[0].then


def test_a_wheel_that_has_a_weaker_hash_is_refused(stocked: Indexes) -> None:
    stocked.add(DEFAULT, "einops", "0.8.2", algorithm="md5")
    with pytest.raises(UserError, match=r"no sha256 for einops 0\.8\.2"):
        resolve.resolve(with_library("einops", "0.8.2"))


def test_an_index_that_does_not_answer_is_named(stocked: Indexes) -> None:
    with pytest.raises(UserError) as error:
        resolve.resolve(make_image(index="http://127.0.0.1:9/whl/cu124"))
    assert "the package index 127.0.0.1 can't be reached" in causes(error)
    assert "no other index has this torch" in error.value.problems[0].then
    assert error.value.code == 1


def test_the_default_index_of_pip_is_honoured_and_nothing_that_adds_to_it() -> None:
    env = {"PATH": "/bin", "PIP_INDEX_URL": "https://mirror.example/simple", "PIP_CERT": "/ca.pem"}
    noise = {
        "UV_INDEX": "x=file:///opt",
        "UV_EXTRA_INDEX_URL": "https://b.example",
        "PIP_EXTRA_INDEX_URL": "file:///o",
    }
    noise |= {"UV_FIND_LINKS": "/opt/wheels", "UV_NO_CACHE": "", "UV_TORCH_BACKEND": "cpu"}
    kept = {
        "PATH": "/bin",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "SSL_CERT_FILE": "/ca.pem",
    }
    assert uv.environment({**env, **noise}) == kept
    own = {"UV_INDEX_URL": "https://u.example/s?a=b", "SSL_CERT_FILE": "/s.pem"}
    assert (
        uv.environment({**own, "PIP_INDEX_URL": "https://p.example", "PIP_CERT": "/p.pem"}) == own
    )


@pytest.mark.parametrize(
    "address", ["file:///srv/index/simple", "/srv/index", "mine=file:///srv/index"]
)
@pytest.mark.parametrize("variable", ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"])
def test_a_default_index_that_is_a_folder_is_refused(variable: str, address: str) -> None:
    with pytest.raises(UserError, match="folder of this machine"):
        uv.environment({variable: address})


def test_an_image_without_a_lock_names_the_command_and_the_index(tmp_path: Path) -> None:
    image = make_image(index="https://download.pytorch.org/whl/cu126")
    assert lock_file.state(image, tmp_path)[0] is Status.MISSING
    with pytest.raises(UserError) as error:
        lock_file.read(image, tmp_path)
    assert "nox -s lock -- cu126-torch25" in error.value.problems[0].then
    assert "https://download.pytorch.org/whl/cu126" in error.value.problems[0].then


def made_of(image: Image, folder: Path) -> None:
    """A lock of the image that holds its pins and nothing they need: enough for its state."""
    wanted = lock_inputs(image)
    layers = {
        place: tuple(
            Package(name=pin.split("==")[0], version=pin.split("==")[1], hashes=("0" * 64,))
            for pin in pins
        )
        for place, pins in (*wanted.layers.items(), *wanted.alone.items())
    }
    files = {
        f"{place}.txt": lock_file.print_requirements(packages) for place, packages in layers.items()
    }
    found = lock_file.serialize(lock_file.Lock(inputs=wanted, files=files, layers=layers))
    lock_file.write({f"{image.name}/{path}": content for path, content in found.items()}, folder)


@given(
    chosen=st.sampled_from([pin for pin in PINS if not pin.optional]), version=st.integers(100, 999)
)
def test_a_moved_pin_is_named_and_refused(
    tmp_path_factory: pytest.TempPathFactory, chosen: Pin, version: int
) -> None:
    folder = tmp_path_factory.mktemp("locks")
    made_of(make_image(), folder)
    assert lock_file.state(make_image(), folder) == (Status.PRESENT, ())
    moved = make_image(pins=repinned(**{chosen.name: str(version)}))
    assert lock_file.state(moved, folder)[1] == (f"{chosen.name} {chosen.version} -> {version}",)
    with pytest.raises(UserError) as error:
        lock_file.read(moved, folder)
    assert f"{chosen.name} {chosen.version} -> {version}" in causes(error)
    assert "nox -s lock -- cu126-torch25" in error.value.problems[0].then


def test_what_comes_goes_and_moves_is_told_but_of_optional_pins(tmp_path: Path) -> None:
    made_of(make_image(), tmp_path)
    assert (
        lock_file.state(make_image(pins=repinned(flash_attn="2.9.0")), tmp_path)[0]
        is Status.PRESENT
    )
    pins = (
        *(pin for pin in PINS if pin.name != "xformers"),
        Pin(name="peft", version="0.18.1", layer="libraries"),
    )
    trixie = dataclasses.replace(make_image().base, glibc=Minor(2, 41))
    moved = dataclasses.replace(
        make_image(pins=pins), python=Minor(3, 13), base=trixie, index="https://i.example"
    )
    assert lock_file.state(moved, tmp_path)[1] == (
        "Python 3.11 -> 3.13",
        "index default -> https://i.example",
        "platform x86_64-manylinux_2_36 -> x86_64-manylinux_2_40",
        "xformers 0.0.29 taken out of kernels",
        "peft 0.18.1 added to libraries",
    )


def test_the_hash_of_an_official_wheel_is_recorded_and_a_moved_one_makes_the_lock_stale(
    tmp_path: Path,
) -> None:
    def with_wheel(
        sha256: str, file: str = "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl"
    ) -> Image:
        wheel = Prebuilt(
            name="flash-attn",
            version="2.8.3",
            filename=file,
            url="https://x.invalid/f",
            sha256=sha256,
        )
        return dataclasses.replace(make_image(), prebuilt=(wheel,))

    made_of(with_wheel("1" * 64), tmp_path)
    assert lock_file.state(with_wheel("1" * 64), tmp_path)[0] is Status.PRESENT
    assert lock_file.state(with_wheel("2" * 64), tmp_path)[1] == (
        f"flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl {'1' * 64} -> {'2' * 64}",
    )
    other = "flash_attn-2.8.4-cp311-cp311-linux_x86_64.whl"
    assert lock_file.state(with_wheel("1" * 64, other), tmp_path)[1] == (
        f"flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl {'1' * 64} taken out of the official wheels",
        f"{other} {'1' * 64} added to the official wheels",
    )


ROW = b"torch==%s --hash=sha256:" + b"0" * 64 + b"\n"


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("torch.txt", None, "torch.txt: is missing"),
        ("torch.txt", Path, "torch.txt: is missing"),
        ("torch.txt", b"<<<<<<< ours\n", "is not `name==version`"),
        ("torch.txt", b"", "torch.txt is not what lock.json records"),
        ("torch.txt", ROW % b"2.6.0", "torch.txt is not what lock.json records"),
        ("lock.json", b"{", "lock.json: is damaged"),
        ("lock.json", b"[]", "lock.json: is damaged"),
    ],
)
def test_a_damaged_lock_is_stale(
    tmp_path: Path, file: str, content: bytes | type[Path] | None, told: str
) -> None:
    """`Path`: a folder lies in the file's place."""
    made_of(make_image(), tmp_path)
    path = tmp_path / "cu126-torch25" / file
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    status, found = lock_file.state(make_image(), tmp_path)
    assert status is Status.STALE
    assert told in "; ".join(found)
    with pytest.raises(UserError, match="or damaged") as problem:
        lock_file.read(make_image(), tmp_path)
    assert "git checkout" in problem.value.problems[0].then


def test_a_line_that_no_pin_needs_is_seen_by_the_record(tmp_path: Path) -> None:
    made_of(make_image(), tmp_path)
    path = tmp_path / "cu126-torch25" / "torch.txt"
    path.write_bytes(path.read_bytes() + b"# a word\n")
    assert lock_file.state(make_image(), tmp_path)[1] == (
        "torch.txt is not what lock.json records",
    )
    assert lock_file.states([make_image()], tmp_path) == {"cu126-torch25": Status.STALE}, (
        "a plan tells it, too"
    )


def test_what_compiled_packages_need_is_asked_for_in_the_order_of_the_layers() -> None:
    rows = (
        ("x", "light", ("ninja", "einops")),
        ("y", "kernels", ("einops",)),
        ("z", "light", ("a",)),
    )
    compiled = (
        Pin(name=name, version="1", layer=layer, compiled=True, needs=needs)
        for name, layer, needs in rows
    )
    wanted = lock_inputs(make_image(pins=(*PINS, *compiled)))
    assert list(wanted.needs.items()) == [
        ("kernels", ("einops",)),
        ("light", ("a", "einops", "ninja")),
    ]
    assert wanted.layers == lock_inputs(make_image()).layers


def renewed(
    folder: Path, *images: Image, others: tuple[Image, ...] = (), upgrade: bool = False
) -> dict[str, bytes]:
    files, _ = resolve.update(images, others, folder=folder, upgrade=upgrade)
    lock_file.write(files, folder)
    return files


def test_moving_one_pin_does_not_move_the_world(stocked: Indexes, tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    renewed(folder, make_image())
    stocked.add(DEFAULT, "aiohttp", "3.1")
    stocked.add(DEFAULT, "liger-kernel", "0.6.5", "torch")
    image = make_image(pins=repinned(liger_kernel="0.6.5"))
    files, _ = resolve.update([image], folder=folder)
    changed = ("cu126-torch25/light.txt", "cu126-torch25/lock.json")
    assert lock_file.differing(files, folder) == changed
    upgraded, _ = resolve.update([image], folder=folder, upgrade=True)
    assert lock_file.differing(upgraded, folder) == ("cu126-torch25/libraries.txt", *changed)


def test_locks_that_share_a_layer_are_equal_in_it_a_new_one_and_at_an_upgrade(
    stocked: Indexes, tmp_path: Path
) -> None:
    folder, one, other = (
        tmp_path / "locks",
        make_image("cu126-torch25"),
        make_image("cu124-torch25"),
    )
    renewed(folder, one)
    stocked.add(DEFAULT, "numpy", "2.1")
    stocked.add(DEFAULT, "aiohttp", "3.1")
    renewed(folder, other, others=(one,))
    for layer in ("torch.txt", "kernels.txt", "libraries.txt"):
        assert (folder / "cu124-torch25" / layer).read_bytes() == (
            folder / "cu126-torch25" / layer
        ).read_bytes()
    files = renewed(folder, one, others=(one, other), upgrade=True)
    assert {path.split("/")[0] for path in files} == {"cu126-torch25", "cu124-torch25"}
    assert b"numpy==2.1 " in files["cu124-torch25/kernels.txt"]


def test_problems_of_all_images_come_at_once_and_nothing_is_made(
    stocked: Indexes, tmp_path: Path
) -> None:
    broken = [
        make_image(name, repinned(datasets="9.9")) for name in ("cu126-torch25", "cu124-torch25")
    ]
    with pytest.raises(UserError) as error:
        resolve.update(broken, folder=tmp_path / "locks")
    assert [problem.where for problem in error.value.problems] == ["cu126-torch25", "cu124-torch25"]


def test_writing_removes_layers_that_are_gone(tmp_path: Path) -> None:
    made_of(make_image(), tmp_path)
    files = {
        f"cu126-torch25/{path.name}": path.read_bytes()
        for path in (tmp_path / "cu126-torch25").iterdir()
    }
    (tmp_path / "cu126-torch25" / "old.txt").write_bytes(b"")
    assert lock_file.differing(files, tmp_path) == ("cu126-torch25/old.txt",)
    lock_file.write(files, tmp_path)
    assert lock_file.differing(files, tmp_path) == ()


def test_committed_locks_agree_in_the_layers_they_share_and_hold_no_address() -> None:
    images = [one.image for one in plan.plan(SOURCES) if one.image and not one.image.index]
    locks = {str(image.name): lock_file.read(image, CHECKOUT.locks) for image in images}
    for name, one in locks.items():
        assert b"://" not in b"".join(lock_file.serialize(one).values())
        for other_name, other in locks.items():
            for layer in one.inputs.find_shared_layers(other.inputs):
                assert one.files[f"{layer}.txt"] == other.files[f"{layer}.txt"], (
                    f"{layer} of {name} and {other_name}"
                )
