"""debian/packages: a small system of Debian's packages.

tests/integration/faults.yaml has what breaks in a real image.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from validate.checks.static import debian as check
from validate.checks.static import environment
from validate.claims import ImageKind
from validate.environment import debian
from validate.environment.image_paths import ImagePaths, walk
from validate.judging import Finding, Status

PROGRAM, PAGE, SETTINGS = "usr/bin/hello", "usr/share/doc/hello", "etc/hello.conf"
"""The files of the package `hello`: a program, documentation, and a configuration file."""
CONTENTS = {PROGRAM: b"a program", PAGE: b"a page", SETTINGS: b"settings"}


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The root folder of a system with the package `hello`. Its /bin is a link to usr/bin."""
    for name, content in CONTENTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "bin").symlink_to("usr/bin")

    info = tmp_path / "dpkg/info"
    info.mkdir(parents=True)
    paths = "".join(f"{tmp_path}/{name}\n" for name in CONTENTS)
    (info / "hello:amd64.list").write_text(f"/.\n{paths}")
    # dpkg writes paths without their first slash.
    program_by_link = f"{str(tmp_path)[1:]}/bin/hello"
    (info / "hello:amd64.md5sums").write_text(
        f"{md5(CONTENTS[PROGRAM])}  {program_by_link}\n{md5(CONTENTS[PAGE])}  {PAGE}\n"
    )
    settings_sum = f"Conffiles:\n {tmp_path}/{SETTINGS} {md5(CONTENTS[SETTINGS])}\n"
    write_status(tmp_path, "install ok installed", settings_sum)

    debian.read_package_files.cache_clear()
    yield tmp_path
    debian.read_package_files.cache_clear()


def write_status(root: Path, state: str, more_fields: str = "") -> None:
    """Give the package a state, and forget its configuration file unless `more_fields` has it."""
    (root / "dpkg/status").write_text(
        f"Package: hello\nStatus: {state}\nVersion: 1\n{more_fields}Description: x\n"
    )


def keep_only_settings(root: Path) -> None:
    """Make the package one that has a folder and a configuration file.

    dpkg writes an empty list of sums for it.
    """
    (root / "dpkg/info/hello:amd64.list").write_text(f"/.\n{root}/etc\n{root}/{SETTINGS}\n")
    (root / "dpkg/info/hello:amd64.md5sums").write_text("")


def replace_program_by_a_link(root: Path) -> None:
    (root / PROGRAM).unlink()
    (root / PROGRAM).symlink_to("/bin/true")


def name_another_package_only(root: Path) -> None:
    """Cut dpkg's `status` short: `hello` is in none of its stanzas."""
    (root / "dpkg/status").write_text("Package: first\nStatus: install ok installed\n")


def judged(root: Path, kind: ImageKind = ImageKind.OURS) -> Finding:
    return judged_paths(root, ImagePaths(dict(walk(str(root), [])), []), kind)


def judged_paths(root: Path, image: ImagePaths, kind: ImageKind = ImageKind.OURS) -> Finding:
    measured = json.dumps(check.compare(f"{root}/dpkg", image))
    # The judge sees the paths of an image, whose root is `/`.
    evidence = json.loads(measured.replace(str(root), ""))
    return check.judge("debian", {"image_kind": kind}, evidence)


def in_state(state: str) -> Callable[[Path], None]:
    return lambda root: write_status(root, state)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(
            lambda root: (root / PROGRAM).write_bytes(b"a t"),
            "/usr/bin/hello is not as Debian's package hello has it",
            id="a-file-is-cut-short",
        ),
        pytest.param(
            lambda root: (root / PROGRAM).unlink(),
            "/usr/bin/hello of Debian's package hello is missing",
            id="a-file-is-missing",
        ),
        pytest.param(
            replace_program_by_a_link,
            "/usr/bin/hello is not as Debian's package hello has it",
            id="a-file-is-a-link",
        ),
        pytest.param(
            lambda root: (root / SETTINGS).write_bytes(b""),
            "/etc/hello.conf is not as Debian's package hello has it",
            id="a-configuration-file-is-emptied",
        ),
        pytest.param(
            in_state("install ok half-configured"),
            "its state is `install ok half-configured`",
            id="half-configured",
        ),
        pytest.param(in_state("install ok unpacked"), "`install ok unpacked`", id="unpacked"),
        pytest.param(
            in_state("install ok triggers-pending"),
            "`install ok triggers-pending`",
            id="triggers-pending",
        ),
        pytest.param(
            in_state("install reinstreq half-installed"),
            "`install reinstreq half-installed`",
            id="half-installed",
        ),
        pytest.param(
            lambda root: (root / "dpkg/status").unlink(),
            "dpkg's database (/var/lib/dpkg/status) has no package",
            id="no-states",
        ),
        pytest.param(
            name_another_package_only,
            "hello is not wholly installed (its state is `unknown to dpkg's status`",
            id="no-state-of-the-package",
        ),
        pytest.param(
            lambda root: (root / "dpkg/info/hello:amd64.md5sums").write_text(""),
            "hello is not wholly installed (its state is `without sums of its files`",
            id="sums-are-emptied",
        ),
        pytest.param(
            lambda root: (root / "dpkg/info/hello:amd64.md5sums").unlink(),
            "hello is not wholly installed (its state is `without sums of its files`",
            id="sums-are-missing",
        ),
    ],
)
def test_a_damaged_package_fails(root: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(root)

    status, reason, _ = judged(root)

    assert status is Status.FAIL, reason
    assert words in reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            lambda root: None,
            "1 Debian packages are wholly installed, and 2 files are as they brought them",
            id="nothing",
        ),
        pytest.param(in_state("hold ok installed"), "", id="held-at-its-version"),
        pytest.param(in_state("deinstall ok config-files"), "", id="removed-but-for-its-settings"),
        pytest.param(
            lambda root: (root / SETTINGS).write_bytes(b"mine"),
            "edited configuration: ",
            id="settings-edited",
        ),
        pytest.param(
            lambda root: (root / SETTINGS).unlink(), "edited configuration: ", id="settings-removed"
        ),
        pytest.param(
            keep_only_settings, "1 files are as they brought them", id="a-package-of-settings-only"
        ),
    ],
)
def test_what_people_do_to_packages_on_purpose_passes(
    root: Path, change: Callable[[Path], object], words: str
) -> None:
    change(root)

    status, reason, _ = judged(root)

    assert status is Status.PASS, reason
    assert words in reason


def test_a_custom_base_with_dpkgs_files_but_no_states_fails(root: Path) -> None:
    (root / "dpkg/status").unlink()

    assert judged(root, ImageKind.ON_CUSTOM_BASE).status is Status.FAIL


def test_a_custom_base_need_not_be_debians(root: Path) -> None:
    (root / "dpkg/status").unlink()
    (root / "dpkg/info").rename(root / "gone")

    assert judged(root, ImageKind.ON_CUSTOM_BASE).status is Status.PASS


# ---- Reading dpkg's database.


def test_a_folder_without_a_database_has_no_packages(tmp_path: Path) -> None:
    assert debian.read_package_files(str(tmp_path)) == debian.PackageFiles({}, {})


def test_files_are_known_by_their_real_paths(root: Path) -> None:
    """The list of sums names /bin/hello, and /bin is a link to usr/bin."""
    files = debian.read_package_files(f"{root}/dpkg")

    program = f"{root}/{PROGRAM}"
    assert files.packages[program] == "hello"
    assert files.md5[program] == md5(CONTENTS[PROGRAM])


def test_a_diverted_file_is_known_where_it_lies(root: Path) -> None:
    listing, sums = root / "dpkg/info/hello:amd64.list", root / "dpkg/info/hello:amd64.md5sums"
    listing.write_text(f"{listing.read_text()}{root}/bin/moved\n")
    sums.write_text(f"{sums.read_text()}{'b' * 32}  {str(root)[1:]}/bin/moved\n")
    (root / "dpkg/diversions").write_text(f"{root}/bin/moved\n{root}/bin/moved.distrib\nother\n")

    files = debian.read_package_files(f"{root}/dpkg")

    moved = f"{root}/usr/bin/moved.distrib"
    assert files.packages[moved] == "hello"
    assert files.md5[moved] == "b" * 32
    assert f"{root}/usr/bin/moved" not in files.md5


def test_sums_of_configuration_files_that_dpkg_will_remove_or_has_not_read_do_not_count(
    root: Path,
) -> None:
    other_package = (
        f"Package: old\nConffiles:\n {root}/{SETTINGS} {'e' * 32} remove-on-upgrade\n"
        f" {root}/etc/new newconffile\n"
    )
    status = root / "dpkg/status"
    status.write_text(f"{status.read_text()}\n{other_package}")

    files = debian.read_package_files(f"{root}/dpkg")

    assert files.md5[f"{root}/{SETTINGS}"] == md5(CONTENTS[SETTINGS])
    assert f"{root}/etc/new" not in files.md5


def test_only_an_unchanged_file_is_taken_for_debians(root: Path) -> None:
    """`environment` asks for this of code that runs whenever Python starts."""
    program = root / PROGRAM
    files = debian.read_package_files(f"{root}/dpkg")
    assert environment.is_as_debian_brought(str(program), files)
    assert not environment.is_as_debian_brought(f"{root}/usr/bin/other", files)

    program.write_bytes(b"another")
    assert not environment.is_as_debian_brought(str(program), files)

    program.unlink()
    assert not environment.is_as_debian_brought(str(program), files)


def test_where_dpkg_is_removed_debians_sitecustomize_is_known_by_its_content(
    root: Path,
) -> None:
    """Else no image is PASS on a base whose owner removed the package manager."""
    file = root / "sitecustomize.py"
    file.write_text(
        "# install the apport exception handler if available\ntry:\n    import apport_python_hook\n"
        "except ImportError:\n    pass\nelse:\n    apport_python_hook.install()\n"
    )
    without_dpkg = debian.read_package_files(f"{root}/nowhere")
    assert environment.is_as_debian_brought(str(file), without_dpkg)
    # With dpkg, its record says whose file it is.
    assert not environment.is_as_debian_brought(
        str(file), debian.read_package_files(f"{root}/dpkg")
    )

    file.write_text("import agent\n")
    assert not environment.is_as_debian_brought(str(file), without_dpkg)


def test_a_file_in_a_folder_that_this_user_cannot_list_is_unproven_and_not_missing(
    root: Path,
) -> None:
    """As inside a container, whose user may not read all that root may."""
    facts = dict(walk(str(root), []))
    del facts[f"{root}/{PROGRAM}"]
    image = ImagePaths(facts, unreadable=[f"{root}/usr/bin"])

    status, reason, _ = judged_paths(root, image)

    assert status is Status.UNPROVEN
    assert f"a user who may not read /{PROGRAM}" in reason
