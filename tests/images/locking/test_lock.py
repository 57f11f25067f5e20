"""Locks, resolved by the real uv from an index of tiny wheels on loopback."""

import dataclasses
import os
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

RELEASES_ON_THE_INDEX = (
    # Name, version, and what it requires.
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
)
PINS = (
    Pin(name="torch", version="2.5.1", layer="torch"),
    Pin(name="xformers", version="0.0.29", layer="kernels"),
    Pin(name="flash-attn", version="2.8.3", layer="kernels", optional=True),
    Pin(name="datasets", version="4.5.0", layer="libraries"),
    Pin(name="liger-kernel", version="0.6.4", layer="light"),
)


@pytest.fixture
def stocked(indexes: Indexes, monkeypatch: pytest.MonkeyPatch) -> Indexes:
    """An index with a sound torch and what the images of this file pin."""
    monkeypatch.setattr(inputs, "TOOLS", ("installer==1.0",))
    for name, version, *requirements in RELEASES_ON_THE_INDEX:
        indexes.add(DEFAULT, name, version, *requirements)
    return indexes


def image_with(
    name: str = "cu126-torch25", pins: tuple[Pin, ...] = PINS, index: str | None = None
) -> Image:
    """Return an image with these pins, and with the toolkit of the CUDA in its name."""
    nvcc = "12.6.85" if name.startswith("cu126") else "12.4.131"
    toolkit = (Pin(name="nvidia-cuda-nvcc-cu12", version=nvcc, layer="toolkit"),)
    return dataclasses.replace(image(name), pins=pins, index=index, toolkit=toolkit, prebuilt=())


def pins_with(**versions: str) -> tuple[Pin, ...]:
    """Return the pins with some versions moved (underscores stand for dashes)."""
    moved = {name.replace("_", "-"): version for name, version in versions.items()}
    return tuple(dataclasses.replace(pin, version=moved.get(pin.name, pin.version)) for pin in PINS)


def image_with_library(name: str, version: str) -> Image:
    return image_with(pins=(*PINS, Pin(name=name, version=version, layer="libraries")))


def write_lock(image: Image, folder: Path) -> None:
    """Write a lock with the image's pins and nothing they require: enough for its state."""
    lock_inputs_of_image = lock_inputs(image)
    places = (*lock_inputs_of_image.layers.items(), *lock_inputs_of_image.alone.items())
    layers: dict[str, tuple[Package, ...]] = {}
    for place, pins in places:
        packages = []
        for pin in pins:
            name, version = pin.split("==")
            packages.append(Package(name=name, version=version, hashes=("0" * 64,)))
        layers[place] = tuple(packages)
    files = {
        f"{place}.txt": lock_file.print_requirements(packages) for place, packages in layers.items()
    }

    lock = lock_file.Lock(inputs=lock_inputs_of_image, files=files, layers=layers)
    for path, content in lock_file.serialize(lock).items():
        lock_file.put({f"{image.name}/{path}": content}, folder)


def update_locks(
    folder: Path, *images: Image, others: tuple[Image, ...] = (), upgrade: bool = False
) -> dict[str, bytes]:
    """Resolve the locks of these images, write them, and return their files."""
    files, _ = resolve.update(images, others, folder=folder, upgrade=upgrade)
    lock_file.write(files, folder)
    return files


def names(packages: tuple[Package, ...]) -> list[str]:
    return [package.name for package in packages]


def causes(error: pytest.ExceptionInfo[UserError]) -> str:
    return "\n".join(problem.cause for problem in error.value.problems)


# --- requirements files ---------------------------------------------------------------------------


SHA256 = st.binary(min_size=32, max_size=32).map(bytes.hex)
"""Any sha256, in one choice of hypothesis: 64 characters would be 64 choices."""
PACKAGES = st.builds(
    Package,
    name=st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,8}){0,2}", fullmatch=True),
    version=st.from_regex(
        r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}(rc1|\.post[0-9])?(\+cu1[0-9]{2})?", fullmatch=True
    ),
    hashes=st.lists(SHA256, min_size=1, max_size=3).map(tuple),
)


@given(st.lists(PACKAGES, max_size=5).map(tuple))
def test_a_printed_requirements_file_is_parsed_to_the_same_packages(
    packages: tuple[Package, ...],
) -> None:
    printed = lock_file.print_requirements(packages)

    assert lock_file.parse_requirements(printed, "torch.txt") == packages


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://a.example/simple",
        "torch @ https://a.example/torch.whl",
        "-e .",
        "torch==2.5.1",
        "torch>=2.5 --hash=sha256:" + "0" * 64,
        "./torch.whl --hash=sha256:" + "0" * 64,
        "torch==2.5.1 --hash=md5:" + "0" * 32,
        "<<<<<<< ours",
    ],
)
def test_a_requirements_file_with_anything_but_hashed_pins_is_refused(line: str) -> None:
    sound = lock_file.print_requirements([Package(name="numpy", version="2.0", hashes=("a" * 64,))])
    place = CHECKOUT.locks / "x" / "torch.txt"

    with pytest.raises(UserError) as error:
        lock_file.parse_requirements(sound + line.encode() + b"\n", str(place))

    assert error.value.problems[0].where == "locks/x/torch.txt", "as it lies in the project"
    assert line[:40] in causes(error)


# --- resolving ------------------------------------------------------------------------------------


def test_each_package_is_in_the_lowest_layer_that_needs_it(stocked: Indexes) -> None:
    lock = resolve.resolve(image_with())

    assert {layer: names(packages) for layer, packages in lock.layers.items()} == {
        "torch": ["fsspec", "nvidia-cuda-runtime-cu12", "torch"],
        "kernels": ["numpy", "xformers"],
        "libraries": ["aiohttp", "datasets"],
        "light": ["liger-kernel"],
        "toolkit": ["nvidia-cuda-nvcc-cu12"],
        "tools": ["installer"],
    }


def test_a_package_has_one_version_in_the_whole_image(stocked: Indexes) -> None:
    lock = resolve.resolve(image_with())

    # The layer `torch` alone would take 2026.1; datasets, in a higher layer, needs an older one.
    assert lock.versions(["torch"])["fsspec"] == "2025.1"


def test_a_pin_is_in_its_own_layer_even_if_a_lower_one_needs_it(stocked: Indexes) -> None:
    lock = resolve.resolve(image_with_library("numpy", "2.0"))

    assert names(lock.layers["kernels"]) == ["xformers"]
    assert "numpy" in names(lock.layers["libraries"])


@pytest.mark.parametrize(
    "algorithm", ["sha256", ""], ids=["given by the index", "not given by the index"]
)
def test_a_locked_hash_is_that_of_the_wheel(stocked: Indexes, algorithm: str) -> None:
    digest = stocked.add(DEFAULT, "liger-kernel", "0.6.5", "torch", algorithm=algorithm)

    lock = resolve.resolve(image_with(pins=pins_with(liger_kernel="0.6.5")))

    assert lock.layers["light"][0].hashes == (digest,)


def test_images_of_one_torch_share_all_files_but_the_toolkits(stocked: Indexes) -> None:
    cu126 = resolve.resolve(image_with("cu126-torch25"))
    cu124 = resolve.resolve(image_with("cu124-torch25"))

    differing = {name for name, content in cu126.files.items() if content != cu124.files[name]}
    assert differing == {"toolkit.txt"}


def test_a_lock_has_no_address_of_an_index(stocked: Indexes) -> None:
    lock = resolve.resolve(image_with())

    content = b"".join(lock_file.serialize(lock).values())
    assert stocked.default.encode() not in content
    assert b"127.0.0.1" not in content


def test_a_find_links_folder_and_a_further_index_are_ignored(
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

    assert resolve.resolve(image_with()).versions(["torch"])["torch"] == "2.5.1"


TORCH_WITHOUT_CUDA = [("torch", "2.5.2", "fsspec"), ("xformers", "0.0.30")]
IMAGE_FOR_CUDA_126 = dataclasses.replace(image_with(), wheel_cuda=Minor(12, 6))


@pytest.mark.parametrize(
    ("added_to_the_index", "image", "cause"),
    [
        (
            [("torch", "2.5.1+cpu", "fsspec")],
            image_with(),
            "torch 2.5.1+cpu is a CPU build; the image wants CUDA 12.4",
        ),
        (
            TORCH_WITHOUT_CUDA,
            image_with(pins=pins_with(torch="2.5.2", xformers="0.0.30")),
            "torch 2.5.2 brings no CUDA runtime",
        ),
        (
            [],
            IMAGE_FOR_CUDA_126,
            "brings nvidia-cuda-runtime-cu12 12.4.127; the image wants CUDA 12.6",
        ),
        (
            [],
            image_with_library("fsspec", "2026.1"),
            "no set of versions fits. uv says: Because all",
        ),
    ],
    ids=[
        "a mirror's CPU build",
        "a torch without CUDA",
        "a torch of another CUDA",
        "pins that clash",
    ],
)
def test_packages_that_do_not_make_up_the_image_are_refused(
    stocked: Indexes, added_to_the_index: list[tuple[str, ...]], image: Image, cause: str
) -> None:
    for release in added_to_the_index:
        stocked.add(DEFAULT, *release)

    with pytest.raises(UserError) as error:
        resolve.resolve(image)

    assert cause in causes(error)
    assert error.value.code == 2


def test_a_package_that_is_published_as_source_only_is_refused(stocked: Indexes) -> None:
    stocked.add_source(DEFAULT, "pure", "1.0")

    with pytest.raises(UserError) as error:
        resolve.resolve(image_with_library("pure", "1.0"))

    assert "pure==1.0 is published as source only" in causes(error)
    assert "name it under `pure_python`" in error.value.problems[0].then


def test_a_package_that_no_index_has_may_come_from_a_folder_of_wheels(stocked: Indexes) -> None:
    with pytest.raises(UserError) as error:
        resolve.resolve(image_with_library("private", "1.0"))

    assert "private was not found in the package registry" in causes(error)
    address = os.environ["UV_DEFAULT_INDEX"]
    assert f"see whether {address} (UV_DEFAULT_INDEX)" in error.value.problems[0].then
    assert "name it under `optional`" in error.value.problems[0].then
    assert "under `indexes`" in error.value.problems[0].then
    assert "--wheelhouse FOLDER" in error.value.problems[0].then


def test_a_package_under_pure_python_is_locked_as_source_in_any_image(
    stocked: Indexes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "BUILD_TOOLS", ("installer==1.0",))
    digest = stocked.add_source(DEFAULT, "pure", "1.0")
    image = dataclasses.replace(image_with_library("pure", "1.0"), from_source=("pure",))

    files = update_locks(tmp_path, image)

    locked = files[f"{image.name}/libraries.txt"].decode()
    assert f"pure==1.0 \\\n    --hash=sha256:{digest}" in locked
    assert f"{image.name}/build.txt" in files
    assert lock_file.state(image, tmp_path).status is Status.PRESENT


def test_a_lock_without_such_a_package_does_not_depend_on_pure_python(
    stocked: Indexes, tmp_path: Path
) -> None:
    before = dataclasses.replace(image_with(), from_source=())
    after = dataclasses.replace(before, from_source=("pure",))
    naming_what_it_has = dataclasses.replace(before, from_source=("numpy",))

    files = update_locks(tmp_path, before)

    assert lock_file.state(after, tmp_path).status is Status.PRESENT
    assert update_locks(tmp_path, after) == files
    assert lock_file.state(naming_what_it_has, tmp_path).status is Status.STALE


def test_a_wheel_with_only_a_weaker_hash_is_refused(stocked: Indexes) -> None:
    stocked.add(DEFAULT, "einops", "0.8.2", algorithm="md5")

    with pytest.raises(UserError, match=r"no sha256 for einops 0\.8\.2"):
        resolve.resolve(image_with_library("einops", "0.8.2"))


def test_an_index_that_does_not_answer_is_named(stocked: Indexes) -> None:
    with pytest.raises(UserError) as error:
        resolve.resolve(image_with(index="http://127.0.0.1:9/whl/cu124"))

    assert "the package index 127.0.0.1:9 can't be reached" in causes(error)
    assert "no other index has this torch" in error.value.problems[0].then
    assert error.value.code == 1


# --- the environment of uv ------------------------------------------------------------------------


def test_uv_gets_index_and_certificates_of_pip_and_nothing_that_adds_packages() -> None:
    of_pip = {
        "PATH": "/bin",
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "PIP_CERT": "/ca.pem",
    }
    adding_packages = {
        "UV_INDEX": "x=file:///opt",
        "UV_EXTRA_INDEX_URL": "https://b.example",
        "PIP_EXTRA_INDEX_URL": "file:///o",
        "UV_FIND_LINKS": "/opt/wheels",
        "UV_NO_CACHE": "",
        "UV_TORCH_BACKEND": "cpu",
    }

    assert uv.environment({**of_pip, **adding_packages}) == {
        "PATH": "/bin",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "SSL_CERT_FILE": "/ca.pem",
    }


def test_settings_of_uv_itself_come_before_those_of_pip() -> None:
    of_uv = {"UV_INDEX_URL": "https://u.example/s?a=b", "SSL_CERT_FILE": "/s.pem"}
    of_pip = {"PIP_INDEX_URL": "https://p.example", "PIP_CERT": "/p.pem"}

    assert uv.environment({**of_uv, **of_pip}) == of_uv


@pytest.mark.parametrize(
    "address", ["file:///srv/index/simple", "/srv/index", "mine=file:///srv/index"]
)
@pytest.mark.parametrize("variable", ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"])
def test_a_default_index_that_is_a_folder_is_refused(variable: str, address: str) -> None:
    with pytest.raises(UserError, match="folder of this machine"):
        uv.environment({variable: address})


# --- whether a lock is still the image's ----------------------------------------------------------


def test_an_image_without_a_lock_names_the_command_and_the_index(tmp_path: Path) -> None:
    unlocked = image_with(index="https://download.pytorch.org/whl/cu126")

    assert lock_file.state(unlocked, tmp_path).status is Status.MISSING
    with pytest.raises(UserError) as error:
        lock_file.read(unlocked, tmp_path)
    assert "nox -s lock -- cu126-torch25" in error.value.problems[0].then
    assert "https://download.pytorch.org/whl/cu126" in error.value.problems[0].then


@given(
    pin=st.sampled_from([pin for pin in PINS if not pin.optional]), version=st.integers(100, 999)
)
def test_a_moved_pin_makes_the_lock_stale_and_is_named(
    tmp_path_factory: pytest.TempPathFactory, pin: Pin, version: int
) -> None:
    folder = tmp_path_factory.mktemp("locks")
    write_lock(image_with(), folder)
    moved = image_with(pins=pins_with(**{pin.name: str(version)}))
    difference = f"{pin.name} {pin.version} -> {version}"

    assert lock_file.state(image_with(), folder) == (Status.PRESENT, ())
    assert lock_file.state(moved, folder).differences == (difference,)
    with pytest.raises(UserError) as error:
        lock_file.read(moved, folder)
    assert difference in causes(error)
    assert "nox -s lock -- cu126-torch25" in error.value.problems[0].then


def test_a_moved_optional_pin_leaves_the_lock_as_it_is(tmp_path: Path) -> None:
    write_lock(image_with(), tmp_path)

    moved = image_with(pins=pins_with(flash_attn="2.9.0"))

    assert lock_file.state(moved, tmp_path).status is Status.PRESENT


def test_everything_that_changed_since_the_lock_was_made_is_named(tmp_path: Path) -> None:
    write_lock(image_with(), tmp_path)
    pins = (
        *(pin for pin in PINS if pin.name != "xformers"),
        Pin(name="peft", version="0.18.1", layer="libraries"),
    )
    base_with_newer_glibc = dataclasses.replace(image_with().base, glibc=Minor(2, 41))

    changed = dataclasses.replace(
        image_with(pins=pins),
        python=Minor(3, 13),
        base=base_with_newer_glibc,
        index="https://i.example",
    )

    assert lock_file.state(changed, tmp_path).differences == (
        "Python 3.11 -> 3.13",
        "index default -> https://i.example",
        "platform x86_64-manylinux_2_36 -> x86_64-manylinux_2_40",
        "xformers 0.0.29 taken out of kernels",
        "peft 0.18.1 added to libraries",
    )


OFFICIAL_WHEEL = "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl"


def image_with_official_wheel(sha256: str, filename: str = OFFICIAL_WHEEL) -> Image:
    wheel = Prebuilt(
        name="flash-attn",
        version="2.8.3",
        filename=filename,
        url="https://x.invalid/f",
        sha256=sha256,
    )
    return dataclasses.replace(image_with(), prebuilt=(wheel,))


def test_an_official_wheel_with_another_hash_makes_the_lock_stale(tmp_path: Path) -> None:
    write_lock(image_with_official_wheel("1" * 64), tmp_path)

    same = lock_file.state(image_with_official_wheel("1" * 64), tmp_path)
    replaced = lock_file.state(image_with_official_wheel("2" * 64), tmp_path)

    assert same.status is Status.PRESENT
    assert replaced.differences == (f"{OFFICIAL_WHEEL} {'1' * 64} -> {'2' * 64}",)


def test_an_official_wheel_with_another_name_makes_the_lock_stale(tmp_path: Path) -> None:
    write_lock(image_with_official_wheel("1" * 64), tmp_path)
    newer = "flash_attn-2.8.4-cp311-cp311-linux_x86_64.whl"

    state = lock_file.state(image_with_official_wheel("1" * 64, newer), tmp_path)

    assert state.differences == (
        f"{OFFICIAL_WHEEL} {'1' * 64} taken out of the official wheels",
        f"{newer} {'1' * 64} added to the official wheels",
    )


ABSENT = None
A_FOLDER = Path
ROW_OF_TORCH = b"torch==%s --hash=sha256:" + b"0" * 64 + b"\n"


@pytest.mark.parametrize(
    ("file", "content", "difference"),
    [
        ("torch.txt", ABSENT, "torch.txt: this file of the lock is missing"),
        ("torch.txt", A_FOLDER, "torch.txt: this file of the lock is missing"),
        ("torch.txt", b"<<<<<<< ours\n", "is not `name==version`"),
        ("torch.txt", b"", "torch.txt is not what lock.json records"),
        ("torch.txt", ROW_OF_TORCH % b"2.6.0", "torch.txt is not what lock.json records"),
        ("lock.json", b"{", "lock.json: it is not as truetag wrote it"),
        ("lock.json", b"[]", "lock.json: it is not as truetag wrote it"),
    ],
    ids=[
        "no file",
        "a folder in its place",
        "a conflict of git",
        "an empty file",
        "another version",
        "no JSON",
        "JSON of another form",
    ],
)
def test_a_damaged_lock_is_not_older_than_the_pins(
    tmp_path: Path, file: str, content: bytes | type[Path] | None, difference: str
) -> None:
    write_lock(image_with(), tmp_path)
    path = tmp_path / "cu126-torch25" / file
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is A_FOLDER:
        path.mkdir()

    status, differences = lock_file.state(image_with(), tmp_path)

    assert status is Status.DAMAGED
    assert difference in "; ".join(differences)
    assert "damaged" in lock_file.why_blocked(image_with(), status)
    with pytest.raises(UserError, match="this lock is damaged") as error:
        lock_file.read(image_with(), tmp_path)
    assert "git checkout" in error.value.problems[0].then


def test_after_an_edit_of_a_pin_the_committed_lock_is_not_advised(tmp_path: Path) -> None:
    write_lock(image_with(), tmp_path)
    edited = image_with(pins=pins_with(liger_kernel="0.6.5"))

    with pytest.raises(UserError, match="made for -> asked for") as error:
        lock_file.read(edited, tmp_path)

    (problem,) = error.value.problems
    assert "git checkout" not in problem.then, "it is the same lock"
    assert "undo the edit in matrix.yaml" in problem.then


def test_a_comment_that_was_added_by_hand_damages_the_lock(tmp_path: Path) -> None:
    write_lock(image_with(), tmp_path)
    path = tmp_path / "cu126-torch25" / "torch.txt"

    path.write_bytes(path.read_bytes() + b"# a word\n")

    state = lock_file.state(image_with(), tmp_path)
    assert state.differences == ("torch.txt is not what lock.json records",)
    assert lock_file.states([image_with()], tmp_path) == {"cu126-torch25": Status.DAMAGED}


def test_requirements_of_compiled_packages_are_inputs_in_the_order_of_the_layers() -> None:
    compiled = []
    for name, layer, needs in (
        ("x", "light", ("ninja", "einops")),
        ("y", "kernels", ("einops",)),
        ("z", "light", ("a",)),
    ):
        compiled.append(Pin(name=name, version="1", layer=layer, compiled=True, needs=needs))

    with_compiled = lock_inputs(image_with(pins=(*PINS, *compiled)))

    assert list(with_compiled.needs.items()) == [
        ("kernels", ("einops",)),
        ("light", ("a", "einops", "ninja")),
    ]
    assert with_compiled.layers == lock_inputs(image_with()).layers, "they are no pins of the lock"


# --- renewing locks -------------------------------------------------------------------------------


def test_moving_one_pin_moves_no_other_package(stocked: Indexes, tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    update_locks(folder, image_with())
    stocked.add(DEFAULT, "aiohttp", "3.1")
    stocked.add(DEFAULT, "liger-kernel", "0.6.5", "torch")
    moved = image_with(pins=pins_with(liger_kernel="0.6.5"))

    files, _ = resolve.update([moved], folder=folder)

    assert lock_file.differing(files, folder) == (
        "cu126-torch25/light.txt",
        "cu126-torch25/lock.json",
    )


def test_an_upgrade_takes_the_newest_version_of_what_no_pin_holds(
    stocked: Indexes, tmp_path: Path
) -> None:
    folder = tmp_path / "locks"
    update_locks(folder, image_with())
    stocked.add(DEFAULT, "aiohttp", "3.1")
    stocked.add(DEFAULT, "liger-kernel", "0.6.5", "torch")
    moved = image_with(pins=pins_with(liger_kernel="0.6.5"))

    files, _ = resolve.update([moved], folder=folder, upgrade=True)

    assert lock_file.differing(files, folder) == (
        "cu126-torch25/libraries.txt",
        "cu126-torch25/light.txt",
        "cu126-torch25/lock.json",
    )


def test_a_new_lock_takes_the_versions_of_a_lock_that_it_shares_layers_with(
    stocked: Indexes, tmp_path: Path
) -> None:
    folder = tmp_path / "locks"
    cu126, cu124 = image_with("cu126-torch25"), image_with("cu124-torch25")
    update_locks(folder, cu126)
    stocked.add(DEFAULT, "numpy", "2.1")
    stocked.add(DEFAULT, "aiohttp", "3.1")

    update_locks(folder, cu124, others=(cu126,))

    for layer in ("torch.txt", "kernels.txt", "libraries.txt"):
        of_cu124 = (folder / "cu124-torch25" / layer).read_bytes()
        assert of_cu124 == (folder / "cu126-torch25" / layer).read_bytes(), layer


def test_an_upgrade_also_renews_the_locks_that_share_a_layer(
    stocked: Indexes, tmp_path: Path
) -> None:
    folder = tmp_path / "locks"
    cu126, cu124 = image_with("cu126-torch25"), image_with("cu124-torch25")
    update_locks(folder, cu126, cu124)
    stocked.add(DEFAULT, "numpy", "2.1")

    files = update_locks(folder, cu126, others=(cu126, cu124), upgrade=True)

    assert {path.split("/")[0] for path in files} == {"cu126-torch25", "cu124-torch25"}
    assert b"numpy==2.1 " in files["cu124-torch25/kernels.txt"]


def test_problems_of_all_images_come_at_once(stocked: Indexes, tmp_path: Path) -> None:
    names_of_images = ["cu126-torch25", "cu124-torch25"]
    unsolvable = [image_with(name, pins_with(datasets="9.9")) for name in names_of_images]

    with pytest.raises(UserError) as error:
        resolve.update(unsolvable, folder=tmp_path / "locks")

    assert [problem.where for problem in error.value.problems] == names_of_images


def test_writing_a_lock_removes_files_of_layers_that_it_lost(tmp_path: Path) -> None:
    write_lock(image_with(), tmp_path)
    folder = tmp_path / "cu126-torch25"
    files = {f"cu126-torch25/{path.name}": path.read_bytes() for path in folder.iterdir()}
    (folder / "old.txt").write_bytes(b"")

    assert lock_file.differing(files, tmp_path) == ("cu126-torch25/old.txt",)
    lock_file.write(files, tmp_path)
    assert lock_file.differing(files, tmp_path) == ()


# --- the committed locks --------------------------------------------------------------------------


def committed_locks() -> dict[str, lock_file.Lock]:
    """Return the locks of images whose torch is on the default index, by the image's name."""
    locks = {}
    for planned in plan.plan(SOURCES):
        if planned.image and not planned.image.index:
            locks[planned.name] = lock_file.read(planned.image, CHECKOUT.locks)
    return locks


def test_committed_locks_are_equal_in_the_layers_that_they_share() -> None:
    locks = committed_locks()

    for name, lock in locks.items():
        for other_name, other in locks.items():
            for layer in lock.inputs.find_shared_layers(other.inputs):
                message = f"{layer} of {name} and {other_name}"
                assert lock.files[f"{layer}.txt"] == other.files[f"{layer}.txt"], message


def test_committed_locks_hold_no_address() -> None:
    for name, lock in committed_locks().items():
        assert b"://" not in b"".join(lock_file.serialize(lock).values()), name
