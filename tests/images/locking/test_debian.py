"""Debian packages in a lock: what is written is what is read, what moved is named, mirrors are the machine's own."""

import dataclasses
from functools import partial
from pathlib import Path

import pytest

from images.commands import lock
from images.config.paths import CHECKOUT, Workspace
from images.context.base_images import PINS_FILE
from images.errors import UserError
from images.locking import debian
from images.planning import plan
from tests.support.sources import SOURCES, image

BASES = {
    debian.lock_path(one.image.base): one.image.base for one in plan.plan(SOURCES) if one.image
}
BASE = image("cu126-torch25").base


@pytest.mark.parametrize("place", BASES)
def test_each_base_of_the_matrix_is_locked_and_written_as_it_is_read(place: str) -> None:
    lock = debian.require(BASES[place], CHECKOUT.locks)
    assert debian.serialize(lock) == (CHECKOUT.locks / place).read_bytes()
    assert lock.base and lock.layer and not lock.base.keys() & lock.layer.keys()
    assert {"apt", "ca-certificates", "gcc", "python3-venv", "curl"} <= lock.versions.keys()
    halves = [lock.serialize_only(half).decode().splitlines() for half in (lock.base, lock.layer)]
    assert [half[0] for half in halves] == [f"# {lock.suite} {lock.architecture} {lock.day}"] * 2


def test_what_moved_is_named() -> None:
    old = debian.require(BASE, CHECKOUT.locks)
    path = next(path for path in old.layer if "/git_" in path)
    layer = {one: digest for one, digest in old.layer.items() if one != path} | {
        "debian/pool/x/git_9_amd64.deb": "0" * 64
    }
    assert debian.changed_packages(old, old) == []
    assert debian.changed_packages(old, dataclasses.replace(old, layer=layer)) == ["git"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("# for: python3 ", "# for: python2 python3 "), r"other packages \(python2\)"),
        (("# layer\n", ""), "is damaged"),
        (("  debian/pool/", " debian/pool/"), "is damaged"),
    ],
)
def test_a_lock_that_is_not_the_images_is_refused(
    wrong: tuple[str, str], said: str, tmp_path: Path
) -> None:
    file = tmp_path / debian.lock_path(BASE)
    file.parent.mkdir()
    with pytest.raises(UserError, match="no lock names the Debian packages"):
        debian.require(BASE, tmp_path)
    file.write_text((CHECKOUT.locks / debian.lock_path(BASE)).read_text().replace(*wrong))
    with pytest.raises(UserError, match=said) as refused:
        debian.find(BASE, tmp_path)
    assert "lock -- NAME --upgrade" in refused.value.problems[0].then


def test_mirrors_are_those_of_this_machines_apt() -> None:
    listing = (
        "Debian|Debian|main|http://mirror.test/debian/\n"
        "Debian|Debian Backports|main|http://backports.test/debian/\n"
        "Debian|Debian-Security|main|http://security.test/debian-security/\n"
        "Vendor|Vendor|main|http://vendor.test/\n"
    )
    found = debian.parse_apt_listing(listing)
    assert debian.source_lines("trixie", found) == [
        "deb http://mirror.test/debian/ trixie main",
        "deb http://mirror.test/debian/ trixie-updates main",
        "deb http://security.test/debian-security/ trixie-security main",
    ]
    assert debian.source_lines("sid", found) == ["deb http://mirror.test/debian/ sid main"]
    strange = (
        "http://me:pw@x.test/",
        "file:/srv/",
        "mirror+file:/etc/apt/mirrors.txt/",
        "cdrom:[x]/",
        "tor+http://x.test/",
    )
    for unusable in (
        "",
        "Ubuntu|Ubuntu|main|http://x.test/",
        *(f"Debian|Debian|main|{one}" for one in strange),
    ):
        assert debian.parse_apt_listing(unusable) == {}, "the default is Debian's own"


@pytest.fixture
def own_mirrors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        debian, "mirrors", lambda: {one: f"http://mirror.test/{one}/" for one in debian.ARCHIVES}
    )


def printed(address: str, digest: str = f"SHA256:{'0' * 64}") -> str:
    return f"Reading package lists...\n'{address}' a_1_all.deb 12 {digest}\n"


@pytest.mark.usefixtures("own_mirrors")
def test_what_apt_would_fetch_lies_below_an_archive_by_its_sha256_or_is_refused() -> None:
    places = (
        "debian/pool/main/g/g%2b%2b/g%2b%2b_1%7e2_amd64.deb",
        "debian-security/pool/updates/x_1_all.deb",
    )
    found = debian.printed_files(
        "".join(printed(f"http://mirror.test/{place}") for place in places)
    )
    assert list(found) == ["debian/pool/main/g/g++/g++_1~2_amd64.deb", places[1]] and {
        *found.values()
    } == {"0" * 64}
    good = "http://mirror.test/debian/pool/main/a/a_1_all.deb"
    for text in (
        printed(good.replace("http://", "file:/")),
        printed(good, ""),
        printed(good, "MD5Sum:0"),
    ):
        with pytest.raises(
            UserError, match=r"a_1_all\.deb: has no sha256, or lies on none of the mirrors"
        ):
            debian.printed_files(text)


@pytest.mark.usefixtures("own_mirrors")
def test_a_machine_without_apt_locks_all_but_debian_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sources = dataclasses.replace(SOURCES, workspace=Workspace(tmp_path / "matrix.yaml"))
    told = partial(lock.lock_debian_packages, [image("cu126-torch25")], sources)
    (text,) = told(upgrade=False, check=False)
    assert f"locks/{debian.lock_path(BASE)} is not made: apt-get: is not on this machine" in text
    with pytest.raises(UserError, match="apt-get: is not on this machine"):
        list(told(upgrade=True, check=False))
    with pytest.raises(UserError, match="no lock names the Debian packages"):
        list(told(upgrade=False, check=True))
    (tmp_path / PINS_FILE).parent.mkdir()
    (tmp_path / PINS_FILE).write_text(f"{BASE.reference}: sha256:0\n")
    assert not [*told(upgrade=True, check=False), *told(upgrade=False, check=True)], (
        "its lock is not asked for"
    )
