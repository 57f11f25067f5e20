"""What the steps of a derived image replaced and removed below, and how whiteouts are read."""

import io
import tarfile

import pytest

from images.engine import derived, layer_tree
from images.engine.layer_tree import LayerEntry


def entry(path: str, kind: str = "file", mode: int = 0o644, content: str = "1") -> LayerEntry:
    return LayerEntry(path, kind, mode, (0, 0), 0, "", content if kind == "file" else "")


def content_of(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    stream = tar.extractfile(member)
    return stream.read().decode() if stream else ""


def layer(*members: str) -> list[LayerEntry]:
    """A layer as it is read from a tar. `a/` is a folder, `a=x` a file with this content."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for member in members:
            name, _, content = member.partition("=")
            info = tarfile.TarInfo(name.rstrip("/"))
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    stream.seek(0)
    with tarfile.open(fileobj=stream) as tar:
        return [layer_tree.entry_of(member, content_of(tar, member)) for member in tar]


BASE = layer("opt/", "opt/a.py=1", "opt/b.py=1", "info/", "info/less.list=1", "info/x.list=1")


@pytest.mark.parametrize(
    ("members", "replaced", "removed"),
    [
        (["opt/a.py=2"], {"/opt/a.py": "content"}, []),
        (["opt/a.py=1", "opt/new.py=1"], {}, []),  # copied up as it was, and something added
        (["opt/.wh.a.py"], {}, ["/opt/a.py"]),
        (["info/.wh.less.list"], {}, ["/info/less.list"]),
        ([".wh.opt"], {}, ["/opt"]),
        (["opt/", "opt/.wh..wh..opq", "opt/b.py=1"], {}, ["/opt/a.py"]),
        ([".wh..wh..opq", "opt/", "opt/b.py=1"], {}, ["/info", "/opt/a.py"]),
        (["opt/a.py/"], {"/opt/a.py": "is a folder now"}, []),
    ],
)
def test_what_a_step_replaces_and_removes_is_named(
    members: list[str], replaced: dict[str, str], removed: list[str]
) -> None:
    changes = derived.changes_by_step([BASE, layer(*members)], 1, ["RUN x"])
    if not replaced and not removed:
        assert changes == []
        return
    (change,) = changes
    assert (change.step, change.replaced, change.removed) == ("RUN x", replaced, removed)


def test_each_step_is_named_for_its_own_changes_and_none_for_added_files() -> None:
    layers = [
        BASE,
        layer("opt/own=1"),
        layer("opt/.wh.own", "opt/.wh.a.py"),
        layer("opt/a.py=3", "opt/b.py=3"),
    ]
    changes = derived.changes_by_step(layers, 1, ["RUN 1", "RUN 2", "RUN 3"])
    assert [(change.step, list(change.replaced), change.removed) for change in changes] == [
        ("RUN 2", [], ["/opt/a.py"]),
        ("RUN 3", ["/opt/b.py"], []),
    ]


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (entry("a", mode=0o600), "mode"),
        (entry("a")._replace(owner=(1001, 0), content="2"), "content and owner"),
        (entry("a")._replace(time=9), ""),
        (entry("a", "hard link")._replace(content="1"), ""),
        (entry("a", "link"), "is a link now"),
    ],
)
def test_how_a_file_differs(after: LayerEntry, said: str) -> None:
    assert derived.describe_difference(entry("a"), after) == said


def test_whiteouts_are_no_files_whatever_their_names_end_in() -> None:
    """Two layers may both have `.wh.less.list`. No store could open that as a file."""
    found = layer(".wh.less.list", "info/.wh.x.so", "a/.wh..wh..opq")
    assert {one.kind for one in found} == {"whiteout"}
    assert list(layer_tree.find_hidden([BASE, layer("info/.wh.less.list")])) == [
        (0, "info/less.list")
    ]


def test_what_layers_make() -> None:
    made = layer_tree.tree(
        [layer("a/", "a/b=1", "c=1", "e/", "e/f=1"), layer("a/.wh..wh..opq", "a/new=1", ".wh.c")]
    )
    assert sorted(path for path in made if made[path].kind == "file") == ["a/new", "e/f"]
    assert sorted(
        layer_tree.tree([[entry("a")]], {"a": entry("a", "folder"), "a/b": entry("a/b")})
    ) == ["a"]
    # At the root it removes all that the layers below have.
    assert list(layer_tree.tree([BASE, layer(".wh..wh..opq", "new=1")])) == ["new"]
    first = [*layer("a/", "a/b=x"), entry("d", "hard link")._replace(link="a/b", mode=0o600)]
    hard = layer_tree.tree([first])["d"]
    assert (hard.kind, hard.content) == ("file", first[1].content)


def test_files_that_no_container_shows_are_named_but_for_what_is_shown_elsewhere_alike() -> None:
    base = layer("etc/passwd=1", "a/b=1", "a/c=1", "a/.wh.d")
    above = layer("etc/passwd=2", "a/.wh.b", "a/c=1")
    hidden = ["etc/passwd", "a/b"]
    assert list(layer_tree.find_hidden([base, above])) == [(0, path) for path in hidden]


@pytest.mark.parametrize(
    ("above", "wasted"),
    [
        pytest.param([entry("a", mode=0o600)], [("a", "copied")], id="another mode"),
        pytest.param([entry("a")._replace(owner=(1001, 0))], [("a", "copied")], id="another owner"),
        pytest.param([entry("a")], [("a", "copied")], id="nothing else"),
        pytest.param(layer(".wh.a"), [("a", "removed")], id="removed"),
        pytest.param([entry("a", "folder")], [("a", "removed")], id="a folder now"),
        pytest.param([entry("a", content="2")], [], id="other content"),
        pytest.param([entry("c")], [], id="a new file"),
        pytest.param(layer(".wh.b"), [], id="a further name of a file"),
    ],
)
def test_files_that_a_later_layer_removes_or_has_again_travel_for_nothing(
    above: list[LayerEntry], wasted: list[tuple[str, str]]
) -> None:
    below = [entry("a"), entry("b", "hard link")._replace(link="a")]

    found = list(layer_tree.find_wasted([below, layer("d/"), above]))

    assert [(file.layer, file.by) for file in found] == [(0, 2)] * len(wasted)
    assert [(file.path, file.how) for file in found] == wasted


def test_a_file_that_two_layers_have_again_travels_for_nothing_twice() -> None:
    layers = [[entry("a")], [entry("a", mode=0o600)], layer(".wh.a")]

    found = list(layer_tree.find_wasted(layers))

    assert [(file.layer, file.by, file.how) for file in found] == [
        (0, 1, "copied"),
        (1, 2, "removed"),
    ]
