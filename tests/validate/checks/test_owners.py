"""origin/files, lookup, privileges: dpkg's database, and judges. More, in a real image:
tests/integration/faults.yaml."""

import fnmatch
import hashlib
import importlib.util
import os
import struct
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.config.paths import CHECKOUT
from images.locking import lock_file
from images.planning import expectations, plan
from images.validation import child
from images.validation.claims.context import ClaimContext
from images.validation.claims.provenance import provenance_claims
from tests.support.cases import cases
from tests.support.judging import fails, judge_claim
from tests.support.sources import SOURCES
from validate.binaries.loader import SearchPath, machine_named
from validate.checks.static import environment, files, owners
from validate.claims import Claim, ClaimSet
from validate.environment import debian, installed, rights, wheel_contents
from validate.environment.user_environment import UserEnvironment
from validate.judging import Finding, Status

(PLANNED,) = plan.select(["cu126-torch27"], SOURCES)
assert PLANNED.image is not None
CONTEXT = ClaimContext.of(
    PLANNED.image,
    lock_file.read(PLANNED.image, CHECKOUT.locks),
    SOURCES.facts,
    missing={"flash-attn": "no network"},
    custom_base=False,
)
CLAIMS = {claim.subject: claim for claim in provenance_claims(CONTEXT)}
GOOD: Mapping[str, Any] = {
    "files": 43960,
    "unowned": [],
    "unowned_count": 0,
    "excused": {"/var/lib/dpkg/*": 896},
    "altered": [],
    "altered_count": 0,
    "path": CLAIMS["files"].expect["path"],
    "in_front": [],
    "loadable": [],
    "plugins": {},
    "privileged": [{"path": "/usr/bin/su", "mode": "4755", "capabilities": False}],
    "writable": [],
    "loose": {},
    "loose_count": 0,
    "void": [],
    "void_count": 0,
    "of_cache": [],
    "authorities": 0,
    "distrusted": 0,
    "accounts": [],
}


def judged(claim: Claim, **changed: Any) -> Finding:
    return judge_claim(claim, {**GOOD, **changed})


def test_of_a_base_of_no_suite_nothing_is_known() -> None:
    unknown = replace(CONTEXT.image, base=replace(CONTEXT.image.base, reference="ubuntu:24.04", suite=None))
    found = provenance_claims(replace(CONTEXT, image=unknown))
    claims = {claim.subject: claim for claim in found}
    about = [claims[name] for name in ("packages", "files", "lookup", "privileges")]
    assert all("ubuntu:24.04" in claim.unproven and not claim.required for claim in about)
    assert claims["wheels"].required


def test_a_healthy_image_is_green() -> None:
    assert {judged(CLAIMS[subject]).status for subject in ("files", "lookup", "privileges")} == {Status.PASS}


@pytest.mark.parametrize(
    ("subject", "changed", "words"),
    [
        ("files", {"unowned": ["/opt/x"], "unowned_count": 3}, "2 more files belong to nobody"),
        ("lookup", {"path": GOOD["path"][::-1]}, "the order of its folders is not as expected"),
        ("lookup", {"loadable": ["/usr/local/lib/libx.so"]}, "/usr/local/lib/libx.so stands where the loader looks"),
        ("privileges", {"privileged": [{"path": "/usr/bin/su", "mode": "6755", "capabilities": False}]}, "6755"),
        ("privileges", {"privileged": [{"path": "/usr/bin/su", "mode": "4755", "capabilities": True}]}, "capabilities"),
        ("privileges", {"writable": ["/usr/lib/x.so"]}, "every user may change /usr/lib/x.so"),
        ("files", {"void": ["/x.pyc"], "void_count": 3}, "2 more files of bytecode"),
        ("privileges", {"loose": {}, "loose_count": 2}, "2 more paths belong to others"),
        ("privileges", {"authorities": 2}, "2 certificate authorities are trusted that Debian"),
        ("privileges", {"distrusted": 2}, "2 certificate authorities that Debian brings are not trusted"),
        ("privileges", {"accounts": ["other has uid 0"]}, "other has uid 0"),
    ],
)
def test_a_fault_that_no_real_image_has_here_is_named(subject: str, changed: dict[str, Any], words: str) -> None:
    fails(judged(CLAIMS[subject], **changed), words)


def test_a_child_may_have_files_and_folders_of_its_own_and_nothing_that_hides_the_parents() -> None:
    claims = {claim.subject: claim for claim in child.claims(ClaimSet(image="x", claims=tuple(CLAIMS.values()))).claims}
    assert judged(claims["files"], unowned=["/app/x"], unowned_count=1).status is Status.PASS
    assert judged(claims["lookup"], path=["/app/bin", *GOOD["path"]]).status is Status.PASS
    altered = [{"path": "/usr/bin/git", "owner": "Debian's git"}]
    assert judged(claims["files"], altered=altered, altered_count=1).status is Status.FAIL
    assert judged(claims["lookup"], path=GOOD["path"][1:]).status is Status.FAIL
    fails(judged(claims["lookup"], path=["", *GOOD["path"]]), "the PATH has ''")
    assert judged(claims["lookup"], in_front=["/usr/local/bin/gcc"]).status is Status.FAIL
    sudo = [{"path": "/usr/bin/sudo", "mode": "4755", "capabilities": False}]
    assert judged(claims["privileges"], privileged=sudo).status is Status.PASS
    assert judged(CLAIMS["privileges"], privileged=sudo).status is Status.FAIL, "in an image of ours"
    assert judged(claims["privileges"], privileged=[{**sudo[0], "packaged": False}]).status is Status.FAIL
    assert judged(claims["privileges"], writable=["/opt/venv/.lock"]).status is Status.PASS
    assert judged(claims["privileges"], writable=["/opt/venv/x"]).status is Status.FAIL
    of_other, own = {"/home/dev/.bashrc": "the shell"}, {"/home/trainer/.bashrc": "the shell"}
    assert judged(claims["lookup"], plugins=of_other).status is Status.PASS
    assert judged(CLAIMS["lookup"], plugins=of_other).status is Status.FAIL, "in an image of ours"
    assert judged(claims["lookup"], plugins=own).status is Status.FAIL
    loaded = "/home/dev/lib/libnccl-net.so"
    on_the_loaders_path = judged(claims["lookup"], plugins={loaded: "NCCL"}, loadable=[loaded])
    assert on_the_loaders_path.status is Status.FAIL and loaded in on_the_loaders_path.reason


def test_dpkgs_database_tells_who_owns_a_file_and_what_it_holds(tmp_path: Path) -> None:
    root, info = str(tmp_path), tmp_path / "dpkg" / "info"
    info.mkdir(parents=True)
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    tool = tmp_path / "usr/bin/tool"
    tool.write_bytes(b"a tool")
    digest = hashlib.md5(b"a tool").hexdigest()
    (info / "tool:amd64.list").write_text(f"/.\n{root}/bin/tool\n{root}/etc/tool.conf\n{root}/bin/moved\n")
    (info / "tool:amd64.md5sums").write_text(f"{digest}  {root[1:]}/bin/tool\n{'b' * 32}  {root[1:]}/bin/moved\n")
    (tmp_path / "dpkg/diversions").write_text(f"{root}/bin/moved\n{root}/bin/moved.distrib\nother\n")
    (tmp_path / "dpkg/status").write_text(
        f"Package: tool\nConffiles:\n {root}/etc/tool.conf {'c' * 32}\nDescription: x\n {root}/etc/no.conf {'d' * 32}\n"
        f"\nPackage: old\nConffiles:\n {root}/etc/tool.conf {'e' * 32} remove-on-upgrade\n {root}/etc/new newconffile\n"
    )
    found = debian.owned(str(tmp_path / "dpkg"))
    assert found.packages[str(tool)] == "tool:amd64"
    moved, settings = f"{root}/usr/bin/moved.distrib", f"{root}/etc/tool.conf"
    assert found.md5 == {str(tool): digest, moved: "b" * 32, settings: "c" * 32}
    assert debian.owned(str(tmp_path / "none")) == debian.Owned({}, {})
    # What runs when Python starts may be Debian's, while it is as packaged.
    assert environment.of_debian(str(tool), found) and not environment.of_debian(moved, found)
    tool.write_bytes(b"another")
    assert not environment.of_debian(str(tool), found)


def test_a_venv_of_python_313_is_what_its_templates_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "_VENV_SCRIPTS", f"{tmp_path}/{{}}")
    (tmp_path / "3.13/common").mkdir(parents=True)
    (tmp_path / "3.13/common/activate").write_text("PS1='('__VENV_PROMPT__') '")
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/activate").write_text("PS1='('env') '")
    (tmp_path / "env/.gitignore").write_bytes(owners._VENV_IGNORED)
    found = dict(owners._of_venv(f"{tmp_path}/env", "3.13", {}))
    assert found[f"{tmp_path}/env/bin/activate"] == found[f"{tmp_path}/env/.gitignore"] == ""
    (tmp_path / "env/.gitignore").write_text("x")
    assert dict(owners._of_venv(f"{tmp_path}/env", "3.13", {}))[f"{tmp_path}/env/.gitignore"] == "venv"


def test_certificates_beyond_the_packages_and_those_that_nobody_trusts_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (f"-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n" for name in ("AAAA", "BBBB"))
    monkeypatch.setattr(debian, "_AUTHORITIES", str(tmp_path))
    (tmp_path / "one.crt").write_text(one)
    (tmp_path / "two.crt").write_text(two)
    packages = debian.Owned({}, {str(tmp_path / "one.crt"): "its sum"})
    bundle, linked = tmp_path / "ca-certificates.crt", tmp_path / "deadbeef.0"
    assert debian.authorities(packages, str(tmp_path)) == (0, 1)
    bundle.write_text(one)
    assert debian.authorities(packages, str(tmp_path)) == (0, 1), "OpenSSL finds it by no link"
    linked.symlink_to("one.crt")
    assert debian.authorities(packages, str(tmp_path)) == (0, 0)
    (tmp_path / "deadbeef.1").symlink_to("two.crt")  # in the package's folder, and not of it
    assert debian.authorities(packages, str(tmp_path)) == (1, 0)
    bundle.write_text(one + two)
    assert debian.authorities(packages, str(tmp_path)) == (1, 0)


@pytest.mark.parametrize(("passwd", "shadow", "told"), cases(__file__, "accounts"))
def test_accounts_that_open_a_way_in_are_told(tmp_path: Path, passwd: str, shadow: str, told: list[str]) -> None:
    (tmp_path / "passwd").write_text(passwd)
    (tmp_path / "shadow").write_text(shadow)
    assert debian.accounts(str(tmp_path / "passwd"), str(tmp_path / "shadow")) == told


def test_hashes_are_those_of_the_files_and_empty_where_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    found = files.hashes([str(tmp_path / "a"), str(tmp_path / "b")], "sha256")
    assert found == {str(tmp_path / "a"): hashlib.sha256(b"a").hexdigest(), str(tmp_path / "b"): ""}


def test_a_link_in_place_of_a_packages_file_and_one_that_leads_elsewhere_are_told(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"git")
    (tmp_path / "git").symlink_to("other")
    (tmp_path / "other").write_bytes(b"not git")
    (tmp_path / "libz.so.1").symlink_to("real")
    (tmp_path / "libm.so.6").symlink_to("other")
    names = ("real", "git", "libz.so.1", "libm.so.6")
    digest = hashlib.md5(b"git").hexdigest()
    paths = [str(tmp_path / name) for name in names]
    owned = debian.Owned(dict(zip(paths, names, strict=True)), dict.fromkeys(paths[:2], digest))
    places = {str(path): path.lstat() for path in tmp_path.iterdir()}
    altered, explained = owners._of_debian(owned, places)
    assert [Path(path).name for path, _ in altered] == ["git"]
    assert [Path(path).name for path, _ in owners._redirected(owned, places, explained)] == ["libm.so.6"]
    assert not list(owners._redirected(owned, places, explained | {str(tmp_path / "other")}))


def test_a_link_that_nobody_lists_stands_where_such_are_made_and_leads_where_its_row_says(tmp_path: Path) -> None:
    (tmp_path / "cc").symlink_to("/etc/alternatives/cc")
    (tmp_path / "zone").symlink_to("Etc/UTC")
    (tmp_path / "gone").symlink_to("/tmp/nothing")
    allowed = {f"{tmp_path}/zone": "Etc/UTC <- tzdata", f"{tmp_path}/gone": "others"}

    def is_known(name: str) -> bool:
        return owners._is_link_of(f"{tmp_path}/{name}", allowed, {"/known"})

    assert is_known("zone") and not is_known("cc"), "one that no row names"
    assert not is_known("gone"), "who makes that file later decides what is found"
    allowed[f"{tmp_path}/zone"] = "Europe/Paris <- tzdata"
    assert not is_known("zone")


def _facts(top: Path) -> dict[str, os.stat_result]:
    return {str(path): path.lstat() for path in top.rglob("*")}


def test_bytecode_of_another_time_or_size_is_void(tmp_path: Path) -> None:
    source, bytecode = tmp_path / "a.py", {}
    source.write_text("x = 1")
    time = struct.pack("<II", int(source.stat().st_mtime), 5)
    digest, magic = importlib.util.source_hash(b"x = 1"), importlib.util.MAGIC_NUMBER
    for name, first, flags, written in (
        ("hashed", magic, 3, digest),
        ("timed", magic, 0, time),
        ("falsely-hashed", magic, 3, time),
        ("never", magic, 1, digest),
        ("other", b"\0" + magic[1:], 0, time),
        ("short", b"", 0, b""),
    ):
        file = tmp_path / f"{name}.{sys.implementation.cache_tag}.pyc"
        file.write_bytes(first + struct.pack("<I", flags) + written)
        bytecode[str(file)] = str(source)
    wrong = ["falsely-hashed", "never", "other", "short"]
    assert [Path(path).name.partition(".")[0] for path in rights.void(bytecode, _facts(tmp_path))] == wrong
    os.utime(source, (0, 0))
    assert len(list(rights.void(bytecode, _facts(tmp_path)))) == 1 + len(wrong)


def test_bytecode_that_is_not_there_is_known_by_its_source(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "not-a-module.py", "other.py", "later.py", "tests/t.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text({"other.py": "return 1", "later.py": "type x = int"}.get(name, "x = 1"))
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/a.cpython-311.pyc").write_bytes(b"")
    paths = [*map(str, tmp_path.rglob("*")), "/opt/venv/bin/jp.py"]
    lacking = list(owners._lacking(paths, (f"{tmp_path}/",), _facts(tmp_path), "3.11"))
    assert lacking == [(f"{tmp_path}/__pycache__/b.cpython-311.pyc", f"{tmp_path}/b.py")]


@pytest.mark.parametrize("key", ["command", "include-system-site-pac\u212aages", "include-system-site-packages\x1f"])
def test_settings_of_an_environment_are_read_as_python_reads_them(tmp_path: Path, key: str) -> None:
    (tmp_path / "pyvenv.cfg").write_text("\n".join([*map(bytes.decode, owners._VENV_SETTINGS), f"{key} = true"]))
    state = dict(owners._of_venv(str(tmp_path), "3.11", {}))[f"{tmp_path}/pyvenv.cfg"]
    assert state == ("" if key == "command" else "venv")


def test_a_link_in_place_of_what_a_record_lists_is_not_explained_by_it(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    (tmp_path / "b.py").symlink_to("/var/cache/b.py")
    entries = [installed.Entry(str(path), "its hash") for path in sorted(tmp_path.iterdir())]
    assert [wheel_contents.explains(entry) for entry in entries] == [True, False]


@pytest.mark.parametrize(("said", "explained"), cases(__file__, "notes"))
def test_notes_of_installers_have_a_form(tmp_path: Path, said: str, explained: bool) -> None:
    note = tmp_path / "a-1.dist-info" / "direct_url.json"
    note.parent.mkdir()
    note.write_text(said)
    assert wheel_contents.explains(installed.Entry(str(note), "its hash")) is explained


def test_what_is_accepted_by_its_path_is_held_by_content_or_has_a_reader_of_its_own() -> None:
    read = {
        "/tmp/uv-*.lock",
        "/var/lib/apt/lists/*",
        *(one for one in expectations.GENERATED if "/opt/truetag/" in one),
    }
    held = [one.replace("**/", "") for one in expectations.HELD_FILES]
    left = [one for one in expectations.GENERATED if not any(fnmatch.fnmatchcase(one, pattern) for pattern in held)]
    assert set(left) == read


def test_folders_of_homes_are_for_everybody_and_home_is_not() -> None:
    theirs = os.stat_result((0o41777, *[0] * 3, 1001, *[0] * 5))
    found = dict.fromkeys(("/home", "/home/x", "/tmp", "/workspace/x", "/usr/local/src"), theirs)
    loose = dict(rights.loose(found, set(found), set(), shared=()))
    assert loose == dict.fromkeys(("/home", "/usr/local/src"), "is a folder for everybody to put files into")
    found = dict.fromkeys(["/opt/x"], os.stat_result((0o100775, *[0] * 9)))
    for made, told in ((0, {}), (1e-9, {"/opt/x": "may be changed by group 0"})):  # of an image of ours alone
        assert dict(rights.loose(found, {"/opt/x"}, set(), made=made)) == told


def test_a_library_has_its_own_name_in_the_loaders_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    places = (f"{folder}/libc.so.6" for folder in machine_named(os.uname().machine).folders)
    path = next(filter(os.path.exists, places))
    names = ("libc.so.6", "libother.so.1")
    monkeypatch.setattr(owners.SearchPath, "of", lambda *_: SearchPath(cache={name: [path] for name in names}))
    found = list(owners._of_cache(UserEnvironment(environ={}, directory="/", python="")))
    assert found == [f"{path} under the name libother.so.1, which is not its own"]


@pytest.mark.parametrize(("name", "made"), [("zstandard.libs", True), (".libs", False), ("zstandard", False)])
def test_of_empty_folders_beside_packages_those_of_auditwheel_are_expected(name: str, made: bool) -> None:
    expect = {"generated": (), "folders": expectations.FOLDERS}
    assert owners._is_made(f"/opt/venv/lib/python3.11/site-packages/{name}", expect) is made
