"""Packages of files and folders, without Docker: what is read of each, and what is found."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from images.audit import packages
from images.audit.model import Audit, Outcome
from images.config import matrix
from images.errors import UserError
from images.planning import chooser
from images.planning.chooser import Machine
from tests.support import elves, wheels
from tests.support.http_server import Reply, Server

_TOML = """
lock-version = "1.0"
created-by = "a test"
[[packages]]
name = "small"
version = "1.0"
marker = "sys_platform == 'linux'"
wheels = [{ url = "https://index.invalid/small-1.0-py3-none-any.whl", hashes = { sha256 = "ab" } }]
"""
_DOCKERFILE = """
FROM debian
RUN apt-get update && pip install --no-cache-dir "torch==2.8.0" \\
    'peft>=0.17' -r requirements.txt $MORE && uv pip install six
RUN python3 -m pip3 install numpy==1.26.4; echo pip install nothing
"""


def audited(source: Path | str, python: str = "", machine: Machine | None = None) -> Audit:
    return packages.audit(str(source), python, matrix.load_facts(), machine, lambda _told: None)[0]


def faults(found: Audit) -> dict[str, str]:
    return {one.key: one.text for one in found.faults()}


def test_what_a_lock_and_a_dockerfile_ask_for_is_read(tmp_path: Path) -> None:
    lock, dockerfile = tmp_path / "pylock.toml", tmp_path / "Dockerfile"
    lock.write_text(_TOML)
    dockerfile.write_text(_DOCKERFILE)
    assert packages._requirements(str(lock)) == (True, "small==1.0 ; sys_platform == 'linux' --hash=sha256:ab", [])
    whole, asked, unread = packages._requirements(str(dockerfile))
    assert not whole and asked.split() == ["torch==2.8.0", "peft>=0.17", "six", "numpy==1.26.4"]
    assert unread == ["-r requirements.txt", "$MORE"]


@pytest.mark.parametrize(
    "told",
    [
        "Because small==1.0 has no usable wheels and you require small==1.0",
        "Because all versions of small have no usable wheels and other==1 depends on small",
        "Because small{platform_machine == 'x86_64'}>=1.7.0,<=1.7.6 has no usable wheels and only",
    ],
)
def test_a_package_without_a_wheel_is_named_by_uv_in_three_ways(told: str) -> None:
    assert (found := packages._SOURCE_ONLY.search(told)) and found[1] == "small"


def test_requirements_that_contradict_each_other_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    one, other = wheels.make(tmp_path), wheels.module(tmp_path, "other", "2.0", "small>=2")
    file = tmp_path / "requirements.txt"
    file.write_text(f"small @ {one.as_uri()}\nother @ {other.as_uri()}\n")
    found = audited(file)
    assert set(faults(found)) == {"audit/contradiction", "audit/requirements"}
    assert faults(found)["audit/requirements"] == "other 2.0 requires small>=2, 1.0 is installed"
    assert found.of(Outcome.NOT_MEASURED) == ()
    assert found.environments[0].distributions == 2


def test_another_release_is_told_before_what_is_not_there_and_the_driver_without_any_torch(tmp_path: Path) -> None:
    needs = "\nRequires-Dist: ".join([*(f"absent{number}" for number in range(9)), "small>=2"])
    venv = wheels.environment(tmp_path / "venv")
    for wheel in (wheels.make(tmp_path), wheels.module(tmp_path, "other", "2.0", needs)):
        wheels.install(wheel, venv, by="uv")
    found = faults(audited(venv, machine=chooser.described("B200", "", "535.104.05")))
    assert found["audit/requirements"].startswith("other 2.0 requires small>=2, 1.0 is installed; ")
    assert "needs driver 570 or newer" in found["audit/machine"]


def test_what_would_be_built_here_is_left_out_and_none_of_it_runs(tmp_path: Path) -> None:
    (own := tmp_path / "own").mkdir()
    (own / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n')
    (own / "own.py").write_text(f"open({str(own / 'ran')!r}, 'w')\n")
    (below := tmp_path / "below").mkdir()
    nested = f"small @ {wheels.make(tmp_path).as_uri()}\n--editable={own}\n-r  ../requirements.txt\n"
    (below / "nested.txt").write_text(nested)
    elsewhere = "-r https://example.org/more.txt\n--no-binary own"
    (tmp_path / "requirements.txt").write_text(f"-r below/nested.txt # theirs\n\n-e {own}\n{elsewhere}\n")
    found = audited(tmp_path / "requirements.txt")
    told = [one.text.removesuffix(": not looked at") for one in found.of(Outcome.NOT_MEASURED)]
    assert told == [f"--editable={own}", f"-e {own}", *elsewhere.splitlines()]
    assert found.environments[0].distributions == 1 and not (own / "ran").exists()


def test_a_changed_file_of_a_virtual_environment_is_found(tmp_path: Path) -> None:
    site = wheels.install(wheels.make(tmp_path), wheels.environment(tmp_path / "venv"), by="uv")
    assert faults(audited(tmp_path / "venv")) == {}
    (site / "small" / "__init__.py").write_text("raise SystemExit\n")
    found = audited(tmp_path / "venv")
    assert "small/__init__.py" in faults(found)["files/recorded"]
    assert faults(audited(site)) == faults(found)


def test_pip_freeze_on_standard_input_and_an_exit_status(tmp_path: Path) -> None:
    wheel = wheels.make(tmp_path)
    command = [sys.executable, "-m", "images", "audit", "-", "--out", str(tmp_path / "out")]
    text = f"small @ {wheel.as_uri()}\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "standard input" in done.stdout
    assert json.loads((tmp_path / "out" / "audit.json").read_text())["audit"]["environments"][0]["distributions"] == 1


def torch(cuda: str) -> "Plant":
    version = f"__version__ = '2.9.1'\ncuda = {cuda}\n".encode()
    library = elves.make(soname="libtorch_cpu.so", exports=["new", "both"])
    return "torch", "2.9.1", "", {"torch/version.py": version, "torch/lib/libtorch_cpu.so": library}


def linked(symbol: str) -> bytes:
    path = "$ORIGIN/../torch/lib"
    return elves.make(needed=["libtorch_cpu.so"], runpath=path, exports=["add"], undefined=[symbol])


def ext(*, needs: str = "", **libraries: bytes) -> "Plant":
    return "ext", "1", needs, {f"ext/{name}.so": content for name, content in libraries.items()}


Plant = tuple[str, str, str, dict[str, bytes]]
PLAIN: Plant = ("one", "1", "", {"one.py": b""})
SOURCED = '[[packages]]\nname = "sourced"\nversion = "1"\n'
NEEDS_TORCH = elves.make(needed=["libtorch.so"])
OLD_NUMPY = elves.make(exports=["numpy.core._multiarray_umath"])


def unlocked(lock: str) -> str:
    return "\n".join("==".join(one) for one in re.findall(r'name = "(.*)"\nversion = "(.*)"', lock))


PLANTED: list[tuple[str, str, list[Plant], Callable[[str], str]]] = [
    (
        "files/recorded",
        "both.py",
        [("one", "1", "", {"both.py": b"a = 1"}), ("two", "1", "", {"both.py": b"a = 2"})],
        str,
    ),
    ("libraries/linked", "libcudart.so.13", [torch("'12.8'"), ext(_C=elves.make(needed=["libcudart.so.13"]))], str),
    ("libraries/linked", "libgone.so.1", [ext(_C=elves.make(needed=["libgone.so.1"]))], str),
    ("libraries/linked", "needs libtorch.so", [("codec", "1", "", {"codec/_core.so": NEEDS_TORCH})], str),
    ("symbols/resolved", "needs old", [torch("None"), ext(_C=linked("old"))], str),
    ("audit/requirements", "other>=2, 1 is installed", [ext(needs="other>=2"), ("other", "1", "", {})], str),
    ("audit/requirements", "other, which is not installed", [ext(needs="other")], str),
    ("audit/machine", "needs driver 570 or newer", [PLAIN], str),
    ("audit/silent-faults", "conv3d in bfloat16", [torch("None"), ("nvidia_cudnn_cu12", "9.10.2.21", "", {})], str),
    ("audit/rare-silent-faults", "Liger-Kernel#968", [("liger_kernel", "0.8.1", "", {})], str),
    ("audit/contradiction", "other>=2", [ext(needs="other>=2"), ("other", "1", "", {})], unlocked),
    ("audit/numpy", "ext/_C.so is compiled for NumPy 1", [("numpy", "2.2.6", "", {}), ext(_C=OLD_NUMPY)], str),
    ("audit/scope", "sourced is published as source only", [PLAIN], lambda lock: lock + SOURCED),
    ("audit/scope", "-e own: not looked at", [PLAIN], lambda lock: lock + '[[packages]]\nname = "own"\n'),
    ("error", "Hash mismatch", [PLAIN], lambda lock: re.sub(r"\w{64}", "0" * 64, lock)),
    ("error", "no version of one==9", [PLAIN], lambda lock: lock.replace('"1"', '"9"')),
    ("error", "you require one==1 and one==2", [PLAIN], lambda lock: lock + lock.replace('"1"', '"2"')),
]
HEALTHY: dict[str, list[Plant]] = {
    "requirements that are met": [ext(needs="one<2"), PLAIN],
    "NumPy 1 beside what it was compiled for": [("numpy", "1.26.4", "", {}), ext(_C=OLD_NUMPY)],
    "variants for several torches": [torch("None"), ext(lib_torch28=linked("old"), lib_torch29=linked("new"))],
    "what torch has, once it is imported": [torch("None"), ext(_C=elves.make(undefined=["both"]))],
    "a library of a package that it requires": [
        ("ffi", "1", "", {"ffi/lib/libffi_own.so": elves.make(soname="libffi_own.so")}),
        ext(_C=elves.make(needed=["libffi_own.so"]), needs="ffi"),
    ],
}


@pytest.fixture
def index(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder whose files the index has that uv asks."""

    def answer(_method: str, path: str, _headers: dict[str, str], _body: bytes) -> Reply:
        name, _, file = path.removeprefix("/simple/").partition("/")
        there = sorted(one.name for one in tmp_path.glob(f"{name.replace('-', '_')}-*"))
        page = "".join(f'<a href="{one}">{one}</a>' for one in there).encode()
        return 200, {"Content-Type": "text/html"}, (tmp_path / file).read_bytes() if file else page

    server.answer = answer
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://{server.host}/simple")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def planted(index: Path, packages: list[Plant], change: Callable[[str], str], driver: str) -> dict[str, str]:
    """What is found in a lock of these packages that was changed so, or the error."""
    lock = ""
    for name, version, needs, files in packages:
        digest = hashlib.sha256(wheels.module(index, name, version, needs, files).read_bytes()).hexdigest()
        lock += (
            f'[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = [{{hashes = {{sha256 = "{digest}"}}}}]\n'
        )
    (index / "sourced-1.tar.gz").touch()
    file = index / ("requirements.txt" if change is unlocked else "pylock.toml")
    file.write_text(change(lock))
    try:
        found = audited(file, machine=chooser.described("B200", "", driver))
    except UserError as error:
        return {"error": str(error)}
    return {one.key: one.text for one in (*found.of(Outcome.NOT_MEASURED), *found.faults())}


@pytest.mark.parametrize(("check", "told", "packages", "change"), PLANTED, ids=[one[1] for one in PLANTED])
def test_a_planted_fault_of_a_lock_is_found(
    check: str, told: str, packages: list[Plant], change: Callable[[str], str], index: Path
) -> None:
    assert told in planted(index, packages, change, "535.104.05").get(check, "")


@pytest.mark.parametrize("case", HEALTHY)
def test_what_is_loaded_in_order_or_for_another_release_is_no_fault(case: str, index: Path) -> None:
    assert [name for name in planted(index, HEALTHY[case], str, "580.65") if not name.endswith("silent-faults")] == []


@pytest.mark.parametrize(
    ("how", "told"),
    [("", "Hash mismatch"), ("truncated", "zip file"), ("cp39-cp39-linux_x86_64", "matching Python")],
)
def test_a_wheel_that_can_not_be_taken_is_told(how: str, told: str, tmp_path: Path) -> None:
    wheel = wheels.make(tmp_path)
    if how == "truncated":
        wheel.write_bytes(wheel.read_bytes()[:-200])
    elif how:
        wheel = wheel.rename(tmp_path / f"small-1.0-{how}.whl")
    altered = "" if how else f" --hash=sha256:{'0' * 64}"
    (tmp_path / "requirements.txt").write_text(f"small @ {wheel.as_uri()}{altered}")
    with pytest.raises(UserError, match=told):
        audited(tmp_path / "requirements.txt", "3.12")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("pylock.toml", "not toml", "can't be read"),
        ("uv.lock", "version = 1", "keep its pyproject.toml beside it"),
        ("requirements.txt", "small==", "uv failed"),
        ("folder", None, "no installed packages"),
        ("none/uv.lock", "", "can't be read"),
        ("requirements-empty.txt", "", "none of its packages has a wheel"),
    ],
)
def test_what_cannot_be_read_is_told(name: str, content: str | None, told: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if path.parent == tmp_path:
        path.mkdir() if content is None else path.write_text(content)
    with pytest.raises(UserError, match=told):
        audited(path)
