"""What a child's layers do to its parent's files: each fault is told by what it does, each liberty is no fault."""

from typing import Any

import pytest

from images.engine import exported
from images.engine.exported import LayerEntry
from images.planning import expectations
from images.validation import on_parent
from validate.checks.static import host_image
from validate.judging import Finding, Status

SITE = "opt/venv/lib/python3.11/site-packages"
LIB = "usr/lib/x86_64-linux-gnu"
STANDARD = "usr/lib/python3.11"
PATH = ["/opt/venv/bin", "/usr/local/bin", "/usr/bin", "/bin"]
EXPECT: dict[str, Any] = {
    "path": PATH,
    "generated": expectations.GENERATED,
    "childrens": expectations.CHILDRENS,
    "additions": expectations.CHILDRENS_ADDITIONS,
    "settings": expectations.CHILDRENS_SETTINGS,
    "plugins": expectations.PLUGINS,
    "known": {"zlib1g": ["1", "2"]},
}


def entry(path: str, content: str = "1", **more: Any) -> LayerEntry:
    kind = more.pop("kind", "file")
    said: dict[str, Any] = {"mode": 0o100644, "owner": (0, 0), "time": 1, "link": "", "data": content.encode()}
    return LayerEntry(path=path, kind=kind, content=content if kind == "file" else "", **{**said, **more})


def program(path: str, content: str = "1", **more: Any) -> LayerEntry:
    return entry(path, content, **{"mode": 0o100755, **more})


def folder(path: str, **more: Any) -> LayerEntry:
    return entry(path, kind="folder", mode=0o40755, **more)


def link(path: str, to: str) -> LayerEntry:
    return entry(path, kind="link", link=to, mode=0o120777)


LOGIN = "auth\trequisite pam_deny.so\nauth required pam_permit.so"


def dpkg(version: str) -> str:
    return f"Package: zlib1g\nStatus: install ok installed\nVersion: {version}\n"


PARENT = [
    [
        link("bin", "usr/bin"),
        program("usr/bin/git"),
        program("usr/bin/gcc"),
        link("usr/bin/cc", "/etc/alternatives/cc"),
        link("etc/alternatives/cc", "/usr/bin/gcc"),
        link("etc/alternatives/awk", "/usr/bin/mawk"),
        folder("usr/lib/git-core"),
        program("usr/lib/git-core/git-remote-https"),
        entry("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf"),
        entry("etc/ld.so.conf.d/x86_64-linux-gnu.conf", f"/{LIB}\n"),
        entry("etc/passwd"),
        entry("etc/nsswitch.conf", "passwd: files\nhosts: files dns [!UNAVAIL=return]\n"),
        entry("etc/ld.so.cache"),
        entry("var/lib/dpkg/status", dpkg("1")),
        entry("var/lib/dpkg/info/zlib1g:amd64.list", "/.\n/lib/x86_64-linux-gnu/libz.so.1.2\n"),
        entry("var/lib/dpkg/info/base-files.list", "/.\n/etc\n/usr\n/usr/lib\n/usr/share"),
        entry("var/lib/dpkg/info/git.list", "/etc\n/usr/share\n/usr/share/git-core"),
        entry("var/lib/dpkg/info/openssh-client.list", "/etc\n/etc/ssh"),
        *(folder(name) for name in ("etc", "etc/ssh", "usr/share", "usr/share/git-core")),
        entry("etc/pam.d/common-auth", f"# as written\n{LOGIN}"),
        entry("usr/include/math.h"),
        link("lib", "usr/lib"),
        entry(f"{LIB}/libz.so.1.2"),
        link(f"{LIB}/libz.so.1", "libz.so.1.2"),
        folder(f"{STANDARD}/json"),
        *(entry(f"{STANDARD}/{name}") for name in ("random.py", "json/__init__.py", "json/decoder.py", "test/a.py")),
        entry(f"{STANDARD}/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so"),
    ],
    [
        folder(f"{SITE}/torch"),
        *(entry(f"{SITE}/torch/{name}") for name in ("__init__.py", "functional.py", "random.py", "lib/libc10.so")),
        entry(f"{SITE}/torch/__pycache__/functional.cpython-311.pyc"),
        entry(f"{SITE}/nvidia/cublas/lib/libcublas.so.12"),
        entry(f"{SITE}/nvidia/cudart/lib/libcudart.so.12"),
        entry(f"{SITE}/fsspec/spec.py"),
        entry(f"{SITE}/fsspec/__pycache__/spec.cpython-311.pyc"),
        entry(f"{SITE}/fsspec-1.dist-info/RECORD", "fsspec/spec.py,sha256=1,1\n../../../bin/fs,,\n"),
        entry(f"{SITE}/fsspec-1.dist-info/INSTALLER"),
        folder("workspace"),
    ],
]  # fmt: skip


def judged(*layer: LayerEntry, **start: Any) -> Finding:
    parent = exported.tree(PARENT)
    begin = on_parent.Start(path=PATH, directory="/workspace")._replace(**start)
    evidence = on_parent.compare(parent, exported.tree([layer], parent), begin, EXPECT)
    return host_image.judge_parent("parent", EXPECT, evidence)  # type: ignore[arg-type]


LIBRARY = entry("opt/x/libz.so.1")


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        ([program("usr/bin/git", "2")], "the parent's /usr/bin/git has another content"),
        ([program("usr/bin/git", mode=0o100700)], "the parent's /usr/bin/git has another mode"),
        ([program("usr/bin/git", owner=(1001, 0))], "the parent's /usr/bin/git has another owner"),
        ([entry("usr/bin/.wh.git")], "the parent's /usr/bin/git is gone"),
        ([entry("usr/lib/.wh.git-core")], "the parent's /usr/lib/git-core is gone"),
        ([entry("usr/lib/git-core/.wh..wh..opq")], "the parent's /usr/lib/git-core/git-remote-https is gone"),
        ([link("usr/bin/git", "/opt/git")], "the parent's /usr/bin/git is a link now"),
        ([link("etc/alternatives/cc", "/opt/cc")], "the parent's /etc/alternatives/cc leads elsewhere"),
        (
            [entry(f"{SITE}/torch/functional.py", time=2)],
            "torch/functional.py has another time, so that its bytecode is void",
        ),
        (
            [program("opt/venv/bin/git")],
            "the program git is /opt/venv/bin/git now, before the parent's /usr/bin/git",
        ),
        ([link("usr/local/bin/gcc", "/usr/bin/git")], "the program gcc is /usr/local/bin/gcc now"),
        (
            [entry(f"{LIB}/glibc-hwcaps/x86-64-v3/libz.so.1")],
            f"library libz.so.1 is /{LIB}/glibc-hwcaps/x86-64-v3/libz.so.1 now, before the parent's /{LIB}/libz.so.1",
        ),
        ([entry(f"{LIB}/tls/haswell/libz.so.1")], f"the library libz.so.1 is /{LIB}/tls/haswell/libz.so.1 now"),
        ([LIBRARY, entry("etc/ld.so.conf.d/00.conf", "/opt/x")], "the library libz.so.1 is /opt/x/libz.so.1 now"),
        ([entry(f"{SITE}/torch/lib/glibc-hwcaps/x86-64-v2/libc10.so")], "the library libc10.so is"),
        ([entry(f"{SITE}/nvidia/cublas/lib/libcudart.so.12")], "the library libcudart.so.12 is"),
        ([entry(f"{STANDARD}/random.cpython-311-x86_64-linux-gnu.so")], "the module random is"),
        ([entry(f"{SITE}/torch/functional/__init__.py")], "the module functional is"),
        ([entry("workspace/random.py")], "the module random is /workspace/random.py now"),
        ([entry("workspace/torch.py")], "the module torch is /workspace/torch.py now"),
        ([entry("etc/apt/sources.list", "deb [arch=amd64 Trusted=yes] https://x/ y z")], "of anybody: Trusted=yes"),
        ([entry("etc/apt/sources.list.d/x.sources", "URIs: http://debian.org@x/y")], "anybody: http://debian.org@x/y"),
        ([entry("usr/lib/python311.zip")], "every module of the standard library is /usr/lib/python311.zip now"),
        ([entry("etc/gitconfig", '[url "https://x/"]\n insteadOf = https://github.com/')], "sets url.https://x/.insteadof"),
        ([entry("etc/gitconfig", "[init] templateDir = /x")], "/etc/gitconfig sets init.templatedir=/x for all users"),
        ([entry("etc/gitconfig", '[filter "lfs"]\nsmudge = sh x')], "sets filter.lfs.smudge=sh x for all users"),
        ([entry("etc/nsswitch.conf", "passwd: files mine")], "/etc/nsswitch.conf sets mine for all users"),
        ([entry("etc/pam.d/common-auth", "auth sufficient pam_permit.so")], "sets auth sufficient pam_permit.so for"),
        ([entry("etc/pam.d/common-auth", "auth required pam_permit.so")], "sets auth required pam_permit.so for all"),
        ([program("usr/share/git-core/hooks/x")], "/git-core/hooks/x stands where the parent's git has its own"),
        ([link("etc/ssh/ssh_config.d/x", "/srv/x")], "/x stands where the parent's openssh-client has its own"),
        ([entry("usr/local/include/math.h")], "the header math.h is /usr/local/include/math.h now, before the"),
        ([entry("etc/.wh.nsswitch.conf")], "the parent's /etc/nsswitch.conf is gone"),
        ([entry(f"{SITE}/fsspec/spec.py", "2")], "fsspec/spec.py has another content"),
    ],
)  # fmt: skip
def test_what_a_layer_does_to_its_parent_is_told(layer: list[LayerEntry], told: str) -> None:
    found = judged(*layer)
    assert found.status is Status.FAIL and told in found.reason, found.reason


@pytest.mark.parametrize(
    "layer",
    [
        [],
        [program("usr/bin/git"), folder("usr/lib/git-core", time=9), entry(f"{SITE}/fsspec-1.dist-info/RECORD")],
        [entry("etc/passwd", "2"), entry("etc/ld.so.cache", "2"), entry("var/lib/dpkg/status")],
        [folder("workspace", owner=(1001, 1001)), entry("workspace/train.py"), entry("workspace/test.py")],
        [entry("workspace/src/random.py"), entry("workspace/datasets/readme"), entry("home/trainer/.bashrc")],
        [entry("etc/gitconfig", '[filter "lfs"]\n\tclean = git-lfs clean -- %f\n[safe] directory = *\n# url\n')],
        [entry("etc/pam.d/common-auth", f"{LOGIN}\nauth optional pam_cap.so")],
        [entry("workspace/tests/__init__.py"), entry("etc/apt/sources.list", "deb http://ftp.debian.org/debian x y")],
        [entry("etc/apt/sources.list.d/x.list", "# http://x\ndeb [signed-by=/k] https://x/ y")],
        [entry("etc/mine.conf"), entry("usr/share/x/y"), entry("etc/ssh/sshd_config"), entry("usr/local/include/x.h")],
        [entry("usr/share/git-core/x"), entry("var/lib/dpkg/info/git-x.list", "/usr/share/git-core/x")],
        [entry("etc/nsswitch.conf", "passwd: files systemd # mine\nnetgroup: nis")],
        [link("etc/alternatives/awk", "/usr/bin/gawk")],
        [program("usr/bin/ffmpeg"), entry(f"{LIB}/libavcodec.so.59"), program("opt/venv/bin/wandb")],
        [entry(f"{SITE}/wandb/random.py"), entry(f"{SITE}/wandb/lib/libz.so.1"), entry(f"{SITE}/random2.py")],
        [
            entry(f"{SITE}/.wh.fsspec-1.dist-info"),
            entry(f"{SITE}/fsspec/spec.py", "2"),
            entry(f"{SITE}/fsspec/__pycache__/.wh.spec.cpython-311.pyc"),
            entry(f"{SITE}/fsspec-2.dist-info/RECORD"),
        ],
        [
            entry(f"{SITE}/torch/functional.py", time=2),
            entry(f"{SITE}/torch/__pycache__/functional.cpython-311.pyc", "2"),
        ],
    ],
)  # fmt: skip
def test_what_a_child_may_do_is_no_fault(layer: list[LayerEntry]) -> None:
    found = judged(*layer)
    assert found.status is Status.PASS, found.reason


@pytest.mark.parametrize(
    ("start", "layer", "told"),
    [
        ({"libraries": ["/opt/x"]}, [LIBRARY], "the library libz.so.1 is /opt/x/libz.so.1 now"),
        ({"libraries": ["/opt/x"]}, [entry("opt/x/libcublas.so.12")], "the library libcublas.so.12 is"),
        ({"libraries": ["/opt/x"]}, [entry("opt/x/libmine.so.1")], ""),
        ({"modules": ["/app"]}, [entry("app/torch/__init__.py")], "the module torch is /app/torch/__init__.py now"),
        ({"modules": ["/opt/venv/lib/python3.11/site-packages/torch"]}, [], "the module random is torch/random.py now"),
        ({"modules": ["/app"]}, [entry("app/json.py")], "the module json is /app/json.py now"),
        ({"modules": ["/app"]}, [entry("app/mine.py"), entry("app/torch/readme.md")], ""),
        ({"path": ["/opt/x/bin", *PATH]}, [program("opt/x/bin/git")], "the program git is /opt/x/bin/git now"),
        ({"path": ["/opt/x/bin", *PATH]}, [program("opt/x/bin/mine"), entry("opt/x/bin/git")], ""),
        ({"directory": "/app"}, [entry("workspace/random.py"), entry("app/mine.py")], ""),
    ],
)  # fmt: skip
def test_settings_decide_what_is_found_first(start: dict[str, Any], layer: list[LayerEntry], told: str) -> None:
    found = judged(*layer, **start)
    assert (found.status is Status.PASS) is (not told) and told in found.reason, found.reason


def test_files_of_an_upgraded_package_of_debian_are_as_well_known_as_its_version() -> None:
    library = entry(f"{LIB}/libz.so.1.2", "2")
    assert "libz.so.1.2 has another content" in judged(library).reason
    assert judged(library, entry("var/lib/dpkg/status", dpkg("2"))).status is Status.PASS
    unknown = judged(library, entry("var/lib/dpkg/status", dpkg("3")))
    assert unknown.status is Status.UNPROVEN and "1 files of zlib1g 1 to 3" in unknown.reason, unknown.reason
    assert judged(library, program("usr/bin/git", "2"), entry("var/lib/dpkg/status", dpkg("3"))).status is Status.FAIL


def test_a_package_whose_list_excuses_what_was_added_is_held_to_its_archive() -> None:
    parent, status = exported.tree(PARENT), "Package: own\nStatus: install ok installed\nVersion: 1\n"
    files = {"status": status, "info/own.md5sums": "0  x", "info/own.list": "/usr/share/git-core/x"}
    layer = [entry("usr/share/git-core/x"), *(entry(f"var/lib/dpkg/{path}", text) for path, text in files.items())]
    found = on_parent.compare(parent, exported.tree([layer], parent), on_parent.Start(PATH), EXPECT)
    assert found.pop("excusing") == {"own 1": "0  x"}
    for said, status in ((True, Status.PASS), (False, Status.FAIL), (None, Status.UNPROVEN)):
        evidence = {**found, "of_archive": {"own 1": said}}
        assert host_image.judge_parent("parent", EXPECT, evidence).status is status  # type: ignore[arg-type]


def test_plugins_of_a_childs_own_are_told() -> None:
    found = judged(entry(f"{LIB}/libnccl-net.so"))
    assert found.status is Status.PASS and f"/{LIB}/libnccl-net.so (NCCL" in found.reason


def test_a_folder_stands_for_what_is_in_it() -> None:
    assert judged(entry("usr/lib/.wh.git-core")).reason == "the parent's /usr/lib/git-core is gone"


def test_layers_add_up_as_the_specification_says() -> None:
    first = [folder("a"), entry("a/b", "x"), entry("c"), entry("d", kind="hard link", link="a/b", mode=0o100600)]
    made = exported.tree([first, [entry("a/.wh..wh..opq"), entry("a/new"), entry(".wh.c")], [entry("e/.wh.f")]])
    assert sorted(made) == ["a", "a/new", "d"]
    assert made["d"].content == "x" and made["d"].kind == "file"
    assert sorted(exported.tree([[entry("a")]], {"a": folder("a"), "a/b": entry("a/b")})) == ["a"]
    # As nobody's builder writes them: below a link of its own, and below one of the layers underneath.
    by_hand = exported.tree([[link("s", "/bin"), entry("s/git"), entry("s/.wh.sh"), entry("lib/x")]], below := {
        "bin/sh": entry("bin/sh"), "lib": link("lib", "usr/lib")
    })  # fmt: skip
    assert sorted(by_hand) == ["bin/git", "lib", "lib/x", "s"] and by_hand["lib"].kind == "folder", below


def test_variables_say_where_is_looked() -> None:
    found = on_parent.start({"PATH": "/a::b", "LD_LIBRARY_PATH": "/c;/d:", "PYTHONPATH": "e"}, "/w", "")
    assert found == on_parent.Start(["/a", "/w/", "/w/b"], ["/c", "/d", "/w/"], ["/w/e"], "/w", "amd64")
    assert on_parent.start({"PATH": ""}, "", "") == on_parent.Start([], [], [])


def test_layers_that_could_not_be_compared_are_unproven() -> None:
    assert host_image.judge_parent("parent", EXPECT, {"unread": "of another"}).status is Status.UNPROVEN  # type: ignore[typeddict-item]


def test_files_that_no_container_shows_are_told_but_for_whiteouts_and_what_is_shown_elsewhere_alike() -> None:
    base = [entry("etc/passwd"), entry("a/b"), entry("a/c"), entry("etc/hosts"), entry("dev/x"), entry("a/.wh.d", "0 ")]
    above = [entry("etc/passwd", "2"), entry("a/.wh.b", "0 "), entry("a/c", mode=0o100600), entry("a/.wh.e", "9 x")]
    assert list(exported.hidden([base, above])) == [
        *((0, path) for path in ("etc/passwd", "a/b", "etc/hosts", "dev/x")), (1, "a/.wh.e")
    ]  # fmt: skip
