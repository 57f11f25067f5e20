"""Locks of Debian packages: how they are read and written, and which mirrors they come from."""

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from images.commands import lock
from images.config.paths import CHECKOUT, Workspace
from images.context.base_images import PINS_FILE
from images.errors import UserError
from images.locking import debian
from images.planning import plan
from tests.support.sources import SOURCES, image

BASES_BY_LOCK = {
    debian.lock_path(planned.image.base): planned.image.base
    for planned in plan.plan(SOURCES)
    if planned.image
}
BASE = image("cu126-torch25").base
SHA256 = "0" * 64


# --- locks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BASES_BY_LOCK)
def test_each_base_of_the_matrix_has_a_lock_that_is_written_as_it_is_read(path: str) -> None:
    debian_lock = debian.require(BASES_BY_LOCK[path], CHECKOUT.locks)

    assert debian.serialize(debian_lock) == (CHECKOUT.locks / path).read_bytes()
    assert debian_lock.base
    assert debian_lock.layer
    assert debian_lock.base.keys().isdisjoint(debian_lock.layer)
    installed = debian_lock.versions.keys()
    assert {"apt", "ca-certificates", "gcc", "python3-venv", "curl"} <= installed


def test_each_half_of_a_lock_is_written_under_the_locks_own_heading() -> None:
    debian_lock = debian.require(BASE, CHECKOUT.locks)
    heading = f"# {debian_lock.suite} {debian_lock.architecture} {debian_lock.day}"

    for files in (debian_lock.base, debian_lock.layer):
        text = debian_lock.serialize_only(files).decode()
        assert text.splitlines()[0] == heading


def test_a_package_that_moved_is_named() -> None:
    before = debian.require(BASE, CHECKOUT.locks)
    layer = {path: digest for path, digest in before.layer.items() if "/git_" not in path}
    layer["debian/pool/x/git_9_amd64.deb"] = SHA256
    after = dataclasses.replace(before, layer=layer)

    assert debian.changed_packages(before, before) == []
    assert debian.changed_packages(before, after) == ["git"]


def test_a_base_without_a_lock_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the Debian packages that the base is made of, is missing"):
        debian.require(BASE, tmp_path)


@pytest.mark.parametrize(
    ("old_text", "new_text", "cause"),
    [
        (
            "# for: python3 ",
            "# for: python2 python3 ",
            "than the one that this truetag installs: python2 is no longer installed",
        ),
        ("# for: python3 ", "# for: ", "that this truetag installs: it lacks python3"),
        ("# layer\n", "", "is damaged"),
        ("  debian/pool/", " debian/pool/", "is damaged"),
    ],
    ids=[
        "made for one package more",
        "made without one package",
        "a half is missing",
        "another separator",
    ],
)
def test_a_lock_that_cannot_be_used_is_an_error_with_the_next_command(
    old_text: str, new_text: str, cause: str, tmp_path: Path
) -> None:
    committed = (CHECKOUT.locks / debian.lock_path(BASE)).read_text()
    file = tmp_path / debian.lock_path(BASE)
    file.parent.mkdir()
    file.write_text(committed.replace(old_text, new_text))

    with pytest.raises(UserError, match=cause) as error:
        debian.find(BASE, tmp_path)

    assert "lock -- NAME --upgrade" in error.value.problems[0].then


# --- mirrors --------------------------------------------------------------------------------------


def test_mirrors_are_those_of_this_machines_apt() -> None:
    listing = (
        "Debian|Debian|main|http://mirror.test/debian/\n"
        "Debian|Debian Backports|main|http://backports.test/debian/\n"
        "Debian|Debian-Security|main|http://security.test/debian-security/\n"
        "Vendor|Vendor|main|http://vendor.test/\n"
    )

    addresses = debian.parse_apt_listing(listing)

    assert debian.source_lines("trixie", addresses) == [
        "deb http://mirror.test/debian/ trixie main",
        "deb http://mirror.test/debian/ trixie-updates main",
        "deb http://security.test/debian-security/ trixie-security main",
    ]
    assert debian.source_lines("sid", addresses) == ["deb http://mirror.test/debian/ sid main"]


@pytest.mark.parametrize(
    "listing",
    [
        "",
        "Ubuntu|Ubuntu|main|http://x.test/",
        "Debian|Debian|main|http://me:pw@x.test/",
        "Debian|Debian|main|file:/srv/",
        "Debian|Debian|main|mirror+file:/etc/apt/mirrors.txt/",
        "Debian|Debian|main|cdrom:[x]/",
        "Debian|Debian|main|tor+http://x.test/",
    ],
)
def test_a_mirror_that_build_steps_cannot_use_is_ignored(listing: str) -> None:
    assert debian.parse_apt_listing(listing) == {}


@pytest.fixture
def mirrors(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {name: f"http://mirror.test/{name}/" for name in debian.ARCHIVES}
    monkeypatch.setattr(debian, "mirrors", lambda: addresses)


def printed(address: str, digest: str = f"SHA256:{SHA256}") -> str:
    """Return what `apt-get --print-uris` prints about one file."""
    return f"Reading package lists...\n'{address}' a_1_all.deb 12 {digest}\n"


@pytest.mark.usefixtures("mirrors")
def test_files_that_apt_would_download_are_locked_by_path_and_sha256() -> None:
    text = printed(
        "http://mirror.test/debian/pool/main/g/g%2b%2b/g%2b%2b_1%7e2_amd64.deb"
    ) + printed("http://mirror.test/debian-security/pool/updates/x_1_all.deb")

    assert debian.printed_files(text) == {
        "debian/pool/main/g/g++/g++_1~2_amd64.deb": SHA256,
        "debian-security/pool/updates/x_1_all.deb": SHA256,
    }


@pytest.mark.usefixtures("mirrors")
@pytest.mark.parametrize(
    "text",
    [
        printed("file:/mirror.test/debian/pool/main/a/a_1_all.deb"),
        printed("http://mirror.test/debian/pool/main/a/a_1_all.deb", ""),
        printed("http://mirror.test/debian/pool/main/a/a_1_all.deb", "MD5Sum:0"),
    ],
    ids=["on no mirror", "without a hash", "with a weaker hash"],
)
def test_a_file_that_cannot_be_locked_is_an_error(text: str) -> None:
    cause = r"a_1_all\.deb: apt-get would fetch this package from .*, and a build can't"
    with pytest.raises(UserError, match=cause):
        debian.printed_files(text)


# --- the verb `lock` on a machine without apt -----------------------------------------------------


def lock_without_apt(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    upgrade: bool = False,
    check: bool = False,
    programs: Path | None = None,
) -> list[str]:
    """Lock the Debian packages of an image in the workspace `folder`, and return the sentences.

    `programs`: the only folder on PATH; by default one without programs.
    """
    monkeypatch.setenv("PATH", str(programs or folder))
    sources = dataclasses.replace(SOURCES, workspace=Workspace(folder / "matrix.yaml"))
    images = [image("cu126-torch25")]
    return list(lock.lock_debian_packages(images, sources, upgrade=upgrade, check=check))


@pytest.mark.usefixtures("mirrors")
def test_without_apt_a_missing_lock_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sentence,) = lock_without_apt(tmp_path, monkeypatch)

    path = debian.lock_path(BASE)
    assert f"locks/{path} is not made: apt-get: this machine has no apt-get" in sentence


@pytest.mark.usefixtures("mirrors")
def test_a_lock_that_was_deleted_and_cannot_be_made_anew_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a checkout that has the lock in git, and not on disk
    file = Workspace(tmp_path / "matrix.yaml").locks / debian.lock_path(BASE)
    file.parent.mkdir(parents=True)
    file.write_text("a lock")
    author = ["-c", "user.name=a", "-c", "user.email=a@b.test"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    file.unlink()
    # A machine with git, and without apt.
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "git").symlink_to(shutil.which("git") or "")

    with pytest.raises(UserError) as error:
        lock_without_apt(tmp_path, monkeypatch, programs=programs)

    (problem,) = error.value.problems
    assert "was deleted, and no new one could be made: this machine has no apt-get" in problem.cause
    assert f"`git checkout HEAD -- {problem.where}`" in problem.then


@pytest.mark.usefixtures("mirrors")
def test_without_apt_an_upgrade_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="apt-get: this machine has no apt-get"):
        lock_without_apt(tmp_path, monkeypatch, upgrade=True)


@pytest.mark.usefixtures("mirrors")
def test_a_check_fails_for_a_missing_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="the Debian packages that the base is made of, is missing"):
        lock_without_apt(tmp_path, monkeypatch, check=True)


@pytest.mark.usefixtures("mirrors")
@pytest.mark.parametrize("options", [{"upgrade": True}, {"check": True}], ids=["upgrade", "check"])
def test_a_base_with_a_pinned_digest_needs_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]
) -> None:
    (tmp_path / PINS_FILE).parent.mkdir()
    (tmp_path / PINS_FILE).write_text(f"{BASE.reference}: sha256:0\n")

    assert lock_without_apt(tmp_path, monkeypatch, **options) == []
