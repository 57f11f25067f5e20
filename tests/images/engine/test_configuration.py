"""The configuration that we write for a built image, and which part of it a verdict is about."""

import base64
import gzip
import io
import json
import stat
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.engine import EngineError, classic_store, configuration, exported, layers
from images.engine.classic_store import ClassicLayer
from images.host.hashing import oci_digest
from images.site import records, runs, status
from tests.support.engine_contents import image_info

_SCRIPT = "RUN /bin/sh -c sh /run/scripts"
_INSTALL = f"{_SCRIPT}/install.sh /opt/venv/bin/python --require-hashes -r /run/locks"
_COPY_TOOLKIT = "{ [ -e /usr/local/cuda ] || cp -a /run/toolkit /usr/local/cuda; }"
_SUITE = f"{_SCRIPT}/suite.sh /opt/venv/bin/python /opt/truetag/additions"
STEPS = {
    "base": "mmdebstrap bookworm",
    "debian": (
        f"{_SCRIPT}/record_change_times.sh && sh /run/scripts/debian.sh 3.11 git # buildkit"
    ),
    "cuda": f"{_INSTALL}/cuda.txt",
    "torch": f"{_INSTALL}/torch.txt",
    "flash_attn": f"{_SCRIPT}/install.sh python /run/wheels/flash_attn-2.8.3-cp311.whl",
    "toolkit": f"RUN /bin/sh -c {_COPY_TOOLKIT} # buildkit",
    "suite": f"{_SUITE} # buildkit",
    "workdir": "WORKDIR /workspace",
}
"""Layer -> the step of an image's history that made it."""
HISTORY = [*STEPS.values(), 'CMD ["bash"]']
INFO = image_info(
    layers=tuple(f"sha256:{name}" for name in STEPS), env={"A": "b"}, workdir="/workspace"
)


def test_the_words_and_dates_of_an_engine_change_nothing() -> None:
    config = {"User": "1001", "Env": ["A=b"], "Labels": {"x": "y"}, "WorkingDir": "/w"}
    new = {
        "Architecture": "amd64",
        "RootFS": {"Layers": ["sha256:1", "sha256:2"]},
        "Config": config,
        "Created": "2026",
    }
    old = {
        **new,
        "Config": {**config, "Hostname": "", "Volumes": None, "ArgsEscaped": True},
        "Created": "2025",
    }
    told = ["ADD file:1 in / ", 'CMD ["bash"]', "ENV A=b", "RUN /bin/sh -c a   && b # buildkit"]
    classic = [
        "/bin/sh -c #(nop) ADD file:1 in / ",
        '/bin/sh -c #(nop)  CMD ["bash"]',
        "ENV A=b",
        "RUN /bin/sh -c a && b",
    ]
    written = configuration.canonical_bytes(new, told)
    assert written is not None and written == configuration.canonical_bytes(old, classic)
    content = json.loads(written)
    assert content["created"] == "2024-01-01T00:00:00Z" and content["config"] == config
    assert [one.get("empty_layer", False) for one in content["history"]] == [
        False,
        True,
        True,
        False,
    ]
    assert configuration.canonical_bytes(new, told[1:]) is None, (
        "a step for each layer, or nothing is said"
    )


def test_a_payload_is_all_layers_and_the_settings() -> None:
    found = configuration.payload(INFO, HISTORY)
    assert list(found) == [*STEPS, "settings"]
    relabelled = replace(INFO, labels={"dev.truetag.matrix-revision": "new"}, handle="sha256:9")
    assert configuration.payload(relabelled, HISTORY) == found
    derived = replace(INFO, layers=(*INFO.layers, "sha256:more"))
    assert (
        configuration.payload(derived, [*HISTORY, "RUN /bin/sh -c pip install x"])["above"]
        == "sha256:more"
    )
    assert configuration.payload(derived, HISTORY) == {}


def test_each_layer_has_the_size_of_the_step_that_made_it() -> None:
    # A step that only sets something makes no layer. WORKDIR makes one without bytes.
    history = [
        (STEPS["base"], 100),
        ("ENV A=b", 0),
        (STEPS["torch"], 5000),
        (STEPS["workdir"], 0),
        ('CMD ["bash"]', 0),
        ("RUN /bin/sh -c pip install x", 7),
    ]

    sizes = configuration.layer_sizes(history)

    assert sizes == {"base": 100, "torch": 5000, "workdir": 0, "above": 7}


@pytest.mark.parametrize("name", [*STEPS, "env", "user", "entrypoint", "command", "further"])
def test_no_recorded_run_is_about_an_image_with_a_change_in_any_layer(name: str) -> None:
    settings = {
        "env": {"A": "c"},
        "user": "0",
        "entrypoint": ("sh",),
        "command": ("sh",),
        "further": {"Shell": ["x"]},
    }
    if name in settings:
        changed = replace(INFO, **{name: settings[name]})  # type: ignore[arg-type]
    else:
        changed = replace(
            INFO,
            layers=tuple("sha256:x" if one == f"sha256:{name}" else one for one in INFO.layers),
        )
    before, after = configuration.payload(INFO, HISTORY), configuration.payload(changed, HISTORY)
    differing = [one for one in before if before[one] != after[one]]
    assert differing == [name if name in STEPS else "settings"]
    (run, *_) = (one for one in runs.recorded_runs([records.FOLDER]) if one.payload)
    recorded = [replace(run, payload=payload) for payload in ({}, before)]
    said, about = status.compare_build(recorded, "sha256:mine", after)
    assert not about and said.startswith(
        f"this build differs in {differing[0]} from the image whose gpu tier "
    )
    assert ("root on the engine's machine" in said) is (name == "suite")
    said, about = status.compare_build(recorded, "sha256:mine", before)
    assert about and said.startswith(
        "this build has, bit for bit, the layers and settings of the image"
    )


@pytest.mark.parametrize(
    "order", ["a/ a/x a.h b", "a/ a.h a/x b", "b a/ a.h a/x"], ids=["walked", "by path", "other"]
)
@pytest.mark.parametrize("old", [False, True], ids=["of today", "of Docker 20.10"])
def test_a_layer_counts_as_engines_of_today_write_it_in_the_order_of_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, old: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    walked = _tar("a/ a/x a.h b".split())
    layer = _stored(tmp_path, order.split(), old=old)
    expected = oci_digest(_tar(order.split()) if order.startswith("b") else walked)
    assert layers.canonical_diff_id(layer) == layers.canonical_diff_id(layer) == expected
    assert oci_digest(b"".join(layer.tar())) == layer.diff_id
    assert (layer.diff_id == expected) is (not old and order != "a/ a.h a/x b")
    (layer.files / "b").write_bytes(_content("c"))
    assert layers.canonical_diff_id(replace(layer, diff_id="sha256:other")) != expected, (
        "one byte of a file"
    )
    known = {layer.diff_id: "sha256:known"}
    assert layers.canonical_diff_ids({layer.diff_id: layer}, known, "x") == known, (
        "it is not read again"
    )


@pytest.mark.parametrize(
    ("names", "compared"),
    [
        (
            "opt/ opt/truetag/ opt/truetag/claims.json "
            "usr/ usr/local/ usr/local/bin/ usr/local/bin/validate",
            False,
        ),
        ("opt/ opt/truetag/ opt/truetag/claims.json opt/venv/ opt/venv/sitecustomize.py", True),
        ("opt/ opt/.wh.venv", True),
    ],
)
def test_the_suites_layer_is_left_out_where_it_holds_the_suite_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, compared: bool
) -> None:
    monkeypatch.setattr(
        layers, "find_layers", lambda *_: {"sha256:suite": _stored(tmp_path, names.split())}
    )
    engine: Any = SimpleNamespace(
        facts=SimpleNamespace(local=True, data_root="/", containerd_images=False),
        steps=lambda _: HISTORY,
    )
    read = layers.read_layers(engine, INFO, {})
    assert ("suite" in read.compared) is compared and "suite" in read.payload
    assert bool(read.beside_suite) is compared


def test_a_store_that_is_damaged_is_an_error_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = _stored(tmp_path, ["a/", "a.h", "a/x"])
    layer.split.write_bytes(layer.split.read_bytes()[:-20])
    monkeypatch.setattr(layers, "find_layers", lambda *_: {"sha256:debian": layer})
    engine: Any = SimpleNamespace(
        facts=SimpleNamespace(local=True, data_root="/", containerd_images=False),
        steps=lambda _: [],
    )
    with pytest.raises(EngineError, match="a layer can't be read"):
        layers.read_layers(engine, INFO, {})


def test_the_store_says_what_layers_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = [["a/", "a/x", "b"], ["a/x", "c"], ["b"]]
    stored = [_stored(tmp_path / str(index), names) for index, names in enumerate(named)]
    order = tuple(layer.diff_id for layer in stored)
    monkeypatch.setattr(
        classic_store, "find_layers", lambda *_: dict(zip(order, stored, strict=True))
    )
    facts = SimpleNamespace(
        local=True, data_root="/", containerd_images=False, storage_driver="overlay2"
    )
    store: Any = SimpleNamespace(facts=facts)
    found = exported.entries(store, image_info(layers=order))
    assert found is not None
    assert [[(entry.path, entry.kind) for entry in layer] for layer in found] == [
        [("a", "folder"), ("a/x", "file"), ("b", "file")],
        [("a/x", "file"), ("c", "file")],
        [("b", "file")],
    ]
    assert found[0][1].content == found[1][0].content, "it was copied up as it was"
    elsewhere: Any = SimpleNamespace(facts=SimpleNamespace(local=False))
    assert exported.entries(elsewhere, image_info(layers=order)) is None


def _content(name: str) -> bytes:
    return (name * 300).encode()


def _member(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name.rstrip("/"))
    if name.endswith("/"):
        info.type = tarfile.DIRTYPE
    else:
        info.size = len(_content(name))
    return info


def _tar(names: list[str]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in names:
            tar.addfile(_member(name), io.BytesIO(_content(name)))
    return stream.getvalue()


def _as_docker_20(plain: bytes) -> bytes:
    """The tar with the kind of each file in its mode, and with names."""
    whole = bytearray(plain)
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        for member in tar:
            at = member.offset_data - tarfile.BLOCKSIZE
            kind = stat.S_IFDIR if member.isdir() else stat.S_IFREG
            whole[at + 100 : at + 108] = b"%07o\0" % (kind | member.mode)
            whole[at + 265 : at + 269] = whole[at + 297 : at + 301] = b"root"
            whole[at + 148 : at + 156] = b" " * 8
            whole[at + 148 : at + 155] = b"%06o\0" % sum(whole[at : at + tarfile.BLOCKSIZE])
    return bytes(whole)


def _stored(folder: Path, names: list[str], *, old: bool = False) -> ClassicLayer:
    """A layer as the engine's store has it: files, and the rest of the tar."""
    whole, entries, position = _as_docker_20(_tar(names)) if old else _tar(names), [], 0
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        for member in tar:
            data = member.offset_data
            entries.append({"type": 2, "payload": base64.b64encode(whole[position:data]).decode()})
            entries.append(
                {
                    "type": 1,
                    "name": f"{member.name}{'/' if member.isdir() else ''}",
                    "size": member.size,
                }
            )
            position = data + member.size
            path = folder / "diff" / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(exist_ok=True) if member.isdir() else path.write_bytes(whole[data:position])
    entries.append({"type": 2, "payload": base64.b64encode(whole[position:]).decode()})
    split = folder / "tar-split.json.gz"
    split.write_bytes(gzip.compress("\n".join(map(json.dumps, entries)).encode()))
    return ClassicLayer(diff_id=oci_digest(whole), split=split, files=folder / "diff")
