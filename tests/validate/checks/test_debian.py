"""debian/packages: a small system of Debian's packages. What breaks in a real one: tests/integration/faults.yaml."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from validate.checks.static import debian as check
from validate.checks.static import environment
from validate.claims import ImageKind
from validate.environment import debian
from validate.environment.image_paths import ImagePaths, walk
from validate.judging import Finding, Status


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A system with one package: a program, a page of documentation, and a configuration file."""
    info = tmp_path / "dpkg/info"
    info.mkdir(parents=True)
    files = {
        "usr/bin/tool": b"a tool",
        "usr/share/doc/tool": b"a page",
        "etc/tool.conf": b"settings",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "bin").symlink_to("usr/bin")
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    (info / "tool:amd64.list").write_text(
        "/.\n" + "".join(f"{tmp_path}/{name}\n" for name in files)
    )
    sums = f"{md5['usr/bin/tool']}  {str(tmp_path)[1:]}/bin/tool\n"
    (info / "tool:amd64.md5sums").write_text(
        f"{sums}{md5['usr/share/doc/tool']}  usr/share/doc/tool\n"
    )
    status(
        tmp_path,
        "install ok installed",
        f"Conffiles:\n {tmp_path}/etc/tool.conf {md5['etc/tool.conf']}\n",
    )
    debian.read_package_files.cache_clear()
    yield tmp_path
    debian.read_package_files.cache_clear()


def status(root: Path, state: str, more: str = "") -> None:
    (root / "dpkg/status").write_text(
        f"Package: tool\nStatus: {state}\nVersion: 1\n{more}Description: x\n"
    )


def only_settings(root: Path) -> None:
    """Make the package one that has a folder and a configuration file: dpkg writes an empty list of sums for it."""
    (root / "dpkg/info/tool:amd64.list").write_text(f"/.\n{root}/etc\n{root}/etc/tool.conf\n")
    (root / "dpkg/info/tool:amd64.md5sums").write_text("")


def judged(root: Path) -> Finding:
    image = ImagePaths(dict(walk(str(root), [])), [])
    return check.judge(
        "debian", {"image_kind": ImageKind.OURS}, check.compare(f"{root}/dpkg", image)
    )


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            lambda root: (root / "usr/bin/tool").write_bytes(b"a t"),
            "/usr/bin/tool is not as Debian's tool has it",
        ),
        (
            lambda root: (root / "usr/bin/tool").unlink(),
            "/usr/bin/tool of Debian's tool is missing",
        ),
        (
            lambda root: [
                (root / "usr/bin/tool").unlink(),
                (root / "usr/bin/tool").symlink_to("/bin/true"),
            ],
            "/usr/bin/tool is not as Debian's tool has it",
        ),
        (
            lambda root: (root / "etc/tool.conf").write_bytes(b""),
            "/etc/tool.conf is not as Debian's tool has it",
        ),
        (
            lambda root: status(root, "install ok half-configured"),
            "in the state `install ok half-configured`",
        ),
        (lambda root: status(root, "install ok unpacked"), "`install ok unpacked`"),
        (lambda root: status(root, "install ok triggers-pending"), "`install ok triggers-pending`"),
        (
            lambda root: status(root, "install reinstreq half-installed"),
            "`install reinstreq half-installed`",
        ),
        (lambda root: (root / "dpkg/status").unlink(), "dpkg's database has no package"),
        (
            lambda root: (root / "dpkg/status").write_text(
                "Package: first\nStatus: install ok installed\n"
            ),
            "Debian's tool is in the state `unknown to dpkg's status`",
        ),
        (
            lambda root: (root / "dpkg/info/tool:amd64.md5sums").write_text(""),
            "Debian's tool is in the state `without sums of its files`",
        ),
        (
            lambda root: (root / "dpkg/info/tool:amd64.md5sums").unlink(),
            "Debian's tool is in the state `without sums of its files`",
        ),
    ],
)
def test_what_is_broken_is_named(root: Path, fault: Callable[[Path], object], words: str) -> None:
    fault(root)
    finding = judged(root)
    assert finding.status is Status.FAIL and words in finding.reason, finding.reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda root: None,
            "1 Debian packages are wholly installed, and 2 files are as they brought them",
        ),
        (lambda root: status(root, "hold ok installed"), ""),
        (lambda root: status(root, "deinstall ok config-files"), ""),
        (lambda root: (root / "etc/tool.conf").write_bytes(b"mine"), "edited configuration: "),
        (lambda root: (root / "etc/tool.conf").unlink(), "edited configuration: "),
        (only_settings, "1 files are as they brought them"),
    ],
)
def test_what_people_do_is_no_fault(
    root: Path, change: Callable[[Path], object], words: str
) -> None:
    change(root)
    finding = judged(root)
    assert finding.status is Status.PASS and words in finding.reason, finding.reason


def test_a_custom_base_need_not_be_debians(root: Path) -> None:
    (root / "dpkg/status").unlink()
    evidence = check.compare(f"{root}/dpkg", ImagePaths({}, []))
    assert (
        check.judge("debian", {"image_kind": ImageKind.ON_CUSTOM_BASE}, evidence).status
        is Status.FAIL
    ), "it is"
    (root / "dpkg/info").rename(root / "gone")
    debian.read_package_files.cache_clear()
    evidence = check.compare(f"{root}/dpkg", ImagePaths({}, []))
    assert (
        check.judge("debian", {"image_kind": ImageKind.ON_CUSTOM_BASE}, evidence).status
        is Status.PASS
    )


def test_dpkgs_database_tells_who_owns_a_file_and_what_it_holds(tmp_path: Path) -> None:
    root, info = str(tmp_path), tmp_path / "dpkg" / "info"
    info.mkdir(parents=True)
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    tool = tmp_path / "usr/bin/tool"
    tool.write_bytes(b"a tool")
    digest = hashlib.md5(b"a tool").hexdigest()
    (info / "tool:amd64.list").write_text(
        f"/.\n{root}/bin/tool\n{root}/etc/tool.conf\n{root}/bin/moved\n"
    )
    (info / "tool:amd64.md5sums").write_text(
        f"{digest}  {root[1:]}/bin/tool\n{'b' * 32}  {root[1:]}/bin/moved\n"
    )
    (tmp_path / "dpkg/diversions").write_text(
        f"{root}/bin/moved\n{root}/bin/moved.distrib\nother\n"
    )
    (tmp_path / "dpkg/status").write_text(
        f"Package: tool\nConffiles:\n {root}/etc/tool.conf {'c' * 32}\nDescription: x\n"
        f"\nPackage: old\nConffiles:\n {root}/etc/tool.conf {'e' * 32} remove-on-upgrade\n {root}/etc/new newconffile\n"
    )
    found = debian.read_package_files(str(tmp_path / "dpkg"))
    assert found.packages[str(tool)] == "tool"
    moved, settings = f"{root}/usr/bin/moved.distrib", f"{root}/etc/tool.conf"
    assert found.md5 == {str(tool): digest, moved: "b" * 32, settings: "c" * 32}
    assert debian.read_package_files(str(tmp_path / "none")) == debian.PackageFiles({}, {})
    # What runs when Python starts may be Debian's, while it is as packaged.
    assert environment.is_as_debian_brought(
        str(tool), found
    ) and not environment.is_as_debian_brought(moved, found)
    tool.write_bytes(b"another")
    assert not environment.is_as_debian_brought(str(tool), found)
