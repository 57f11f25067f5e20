"""What a trial gets of Apptainer, with a program in its place that unpacks nothing and runs commands where it stands.

It gives no container anything and takes nothing away: what the options do is seen with the real one alone, by hand
(tests/support/other_runtimes.py; Debian has it in sid).
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import images.apptainer
from images.apptainer import runtime
from images.apptainer.runtime import Apptainer, ApptainerContainer, Published, published
from images.engine import ContainerSpec, EngineError, EngineErrorKind, NoEngine, TimedOut
from images.engine.failures import Cancelled
from images.engine.runtime import KILLED
from images.errors import Problem, UserError
from tests.support.checkout import ROOT

REFERENCE = "registry.test/lab/images@sha256:" + "1" * 64
PROGRAM = """#!/bin/sh
case "$*" in
  --version) echo apptainer version 1.4.5 ;;
  *build*broken*) case "$*" in *--no-https*) ;; *) exit 1 ;; esac
    [ "$APPTAINER_TMPDIR" ] && [ -d "$APPTAINER_TMPDIR" ] && echo no space left >&2; exit 255 ;;
  *build*) for one; do case "$one" in */root)
    mkdir -p "$one" ;; esac; done ;;
  *) while [ "$1" != /usr/bin/env ]; do shift; done; exec "$@" ;;
esac
"""


@pytest.fixture
def apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Apptainer]:
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(runtime, "read_published", of_registry)
    with Apptainer() as found:
        yield found
    assert list((tmp_path / "scratch").iterdir()) == [], "an unpacked image is left"


def of_registry(reference: str) -> Published | None:
    config = {"config": {"Env": ["PATH=/usr/bin:/bin"]}}
    found = published(reference, "sha256:" + "2" * 64, config, plain_http="broken" in reference)
    return found if "none" not in reference else None


def test_a_container_of_an_image_that_is_named_by_its_digest(apptainer: Apptainer) -> None:
    info = apptainer.pull(REFERENCE)
    spec = ContainerSpec(info.id, ["sh", "-c", "echo $HOSTNAME $OWN"], env={"OWN": "x"}, volumes=["/judge"])
    with apptainer.container(spec) as container:
        container.put({"claims.json": b"{}"}, "/judge")
        container.start()
        assert [line.text for line in container.lines(timeout=60)] == ["validation x"]
        assert container.wait(timeout=60).code == 0
    assert apptainer.facts.version == "apptainer 1.4.5" and apptainer.facts.apptainer


def test_who_cancels_ends_what_runs_and_what_would_begin(apptainer: Apptainer) -> None:
    info = apptainer.inspect(REFERENCE)
    spec = ContainerSpec(info.id, ["sh", "-c", "echo began; exec sleep 600"])
    with pytest.raises(Cancelled), apptainer.container(spec) as container:
        container.start()
        lines = container.lines()
        assert next(lines).text == "began"
        threading.Thread(target=apptainer.cancel).start()
        assert list(lines) == []
    with pytest.raises(Cancelled), apptainer.container(spec):
        pass


@pytest.mark.parametrize(
    ("reference", "more", "said"),
    [
        ("registry.test/broken:1", {}, r"can't be unpacked \(status 255\): no space left"),
        (REFERENCE, {"user": "0"}, "can't give a container a user of its own"),
        (REFERENCE, {"ulimits": {"memlock": -1}}, "gives the limits of the user who starts it"),
    ],
)
def test_what_apptainer_can_not_give_is_refused(
    apptainer: Apptainer, reference: str, more: dict[str, Any], said: str
) -> None:
    """Else a claim of another user would pass as the caller's."""
    spec = ContainerSpec(apptainer.inspect(reference).id, ["true"], **more)
    with pytest.raises(UserError, match=said) as told, apptainer.container(spec):
        pass
    assert getattr(told.value, "kind", None) is (EngineErrorKind.ULIMIT if "ulimits" in more else None)


@pytest.mark.parametrize("reference", ["registry.test/none:1", "cu126-torch27", "sha256:" + "3" * 64])
def test_an_image_that_no_registry_has(apptainer: Apptainer, reference: str) -> None:
    assert apptainer.find(reference) is None
    with pytest.raises(EngineError, match="name one with its registry"):
        apptainer.inspect(reference)


def test_it_is_taken_where_no_engine_answers_and_never_by_root(
    apptainer: Apptainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise NoEngine(Problem(where="engine", cause="none answers"))

    monkeypatch.setattr(images.apptainer, "connect", nobody)
    with images.apptainer.open_runtime(None) as found:
        assert isinstance(found, Apptainer)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(NoEngine):
        images.apptainer.open_runtime(None)
    with pytest.raises(UserError, match="root"):
        images.apptainer.open_runtime("apptainer")


CONFIG = {
    "architecture": "amd64",
    "rootfs": {"diff_ids": ["sha256:aa"]},
    "config": {"Env": ["PATH=/opt/venv/bin:/usr/bin", "HOME=/home/me"], "WorkingDir": "/workspace", "User": "1001"},
}
IMAGE = published(REFERENCE, "sha256:" + "2" * 64, CONFIG).info
SPEC = ContainerSpec(
    IMAGE.id, ["python3", "-I", "$HOME"], volumes=["/judge"], tmpfs={"/tmp": "rw"}, env={"TMPDIR": "/tmp"}
)
FOLDERS = {"/judge": Path("/x/0"), "/tmp": Path("/x/1"), "/etc/hosts": Path("/x/hosts")}


def words(spec: ContainerSpec = SPEC) -> list[str]:
    return runtime.exec_command(spec, IMAGE, Path("/x/root"), FOLDERS)


def after(option: str, found: list[str]) -> list[str]:
    return [value for name, value in pairwise(found) if name == option]


def test_a_container_gets_its_folders_and_nothing_else_of_the_host() -> None:
    found = words()
    assert after("--mount", found) == [
        "type=bind,source=/x/0,destination=/judge,ro",
        "type=bind,source=/x/1,destination=/tmp",
        "type=bind,source=/x/hosts,destination=/etc/hosts,ro",
    ]
    assert {"--containall", "--no-home", "--no-privs", "--no-nv", "--no-rocm"} < set(found)
    assert after("--no-mount", found) == ["tmp,cwd,hostfs,bind-paths"]
    assert not {"--writable", "--writable-tmpfs", "--fakeroot", "--nv"} & set(found), "its root is read-only"
    assert after("--network", found) == ["none"] and "--net" in found
    assert after("--hostname", found) == ["validation"] and " validation\n" in runtime.HOSTS, "it resolves its own name"


def test_its_variables_are_those_of_docker() -> None:
    """Apptainer adds LD_LIBRARY_PATH, PS1 and others, which a claim would take for the image's."""
    found = words()
    start = found.index("/usr/bin/env")
    assert found[start : start + 2] == ["/usr/bin/env", "-i"]
    variables = dict(word.partition("=")[::2] for word in found[start + 2 : -3])
    own = {"PATH": "/opt/venv/bin:/usr/bin", "HOME": "/home/me", "TMPDIR": "/tmp", "HOSTNAME": "validation"}
    assert variables == own
    assert found[-3:] == ["python3", "-I", "$HOME"] and "--no-eval" in found, "arguments as they are"
    assert after("--pwd", found) == ["/workspace"]


@pytest.mark.parametrize(("user", "home"), [("", "/root"), ("root", "/root"), ("1001", "/")])
def test_an_image_without_variables_has_dockers(user: str, home: str) -> None:
    bare = replace(IMAGE, env={}, workdir="", user=user)
    found = runtime.exec_command(SPEC, bare, Path("/x/root"), FOLDERS)
    assert any(word.startswith("PATH=/usr/local/sbin:") for word in found) and f"HOME={home}" in found
    assert after("--pwd", found) == ["/"]


def test_a_sites_variables_give_a_container_nothing() -> None:
    """A site's APPTAINER_BIND is added to the options, APPTAINERENV_X is set inside, even with --containall."""
    options = ("BIND", "BINDPATH", "MOUNT", "WRITABLE_TMPFS", "FAKEROOT", "NV", "OVERLAY", "CONTAINLIBS", "KEEP_PRIVS")
    site = {f"{own}_{name}": "x" for own in ("APPTAINER", "SINGULARITY") for name in options}
    inside = {"APPTAINERENV_LD_PRELOAD": "x", "SINGULARITYENV_X": "x"}
    kept = {"APPTAINER_CACHEDIR": "/c", "APPTAINER_TMPDIR": "/t", "SINGULARITY_DOCKER_PASSWORD": "p", "PATH": "/bin"}
    assert runtime.host_variables({**site, **inside, **kept}) == kept


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (replace(SPEC, user="0"), "user"),
        (replace(SPEC, copied_volumes=["/home/me"]), "volumes"),
        (replace(SPEC, network="bridge"), "network"),
        (replace(SPEC, read_only=False), "writable"),
        (replace(SPEC, devices=["/dev/nvidia0"]), "devices"),
        (SPEC, ""),
    ],
)
def test_what_can_not_be_given_has_a_name(spec: ContainerSpec, word: str) -> None:
    found = runtime.unsupported(spec)
    assert word in found and bool(found) is bool(word)


def test_gpus_come_by_nv_and_folders_of_any_name_by_mount() -> None:
    request = {"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}
    found = words(replace(SPEC, device_requests=(request,), binds={"/driver": "/driver"}))
    assert "--nv" in found and "--no-nv" not in found
    assert "type=bind,source=/driver,destination=/driver,ro" in after("--mount", found)
    found = runtime.exec_command(SPEC, IMAGE, Path("/x/root"), {"/tmp": Path('/a,b:c"d')})
    assert after("--mount", found) == ['type=bind,"source=/a,b:c""d",destination=/tmp'], "`--bind` splits at , and :"


def test_a_configuration_says_what_an_engine_would() -> None:
    assert (IMAGE.id, IMAGE.user, IMAGE.workdir) == ("sha256:" + "2" * 64, "1001", "/workspace")
    assert IMAGE.env["HOME"] == "/home/me" and IMAGE.layers == ("sha256:aa",) and IMAGE.digests == (REFERENCE,)
    assert published(REFERENCE, "sha256:0", {}).info.env == {}


def container(tmp_path: Path, *command: str) -> ApptainerContainer:
    return ApptainerContainer("x", list(command), {"/judge": tmp_path})


def test_it_prints_two_streams_and_has_a_status_as_with_docker(tmp_path: Path) -> None:
    found = container(tmp_path, "sh", "-c", "echo out; echo err >&2; printf last; exit 3")
    found.start()
    printed = sorted((line.stream, line.text) for line in found.lines())
    assert printed == [("stderr", "err"), ("stdout", "last"), ("stdout", "out")] and found.wait().code == 3
    killed = container(tmp_path, "sh", "-c", "kill -9 $$")
    killed.start()
    assert list(killed.lines()) == [] and killed.wait().code == KILLED == 128 + signal.SIGKILL


def test_files_are_there_before_it_starts_and_a_sites_options_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_BIND", "/scratch")
    monkeypatch.setenv("APPTAINER_CACHEDIR", "/cache")
    found = container(tmp_path, "sh", "-c", f"cat {tmp_path}/validate/x.py; echo $APPTAINER_BIND $APPTAINER_CACHEDIR")
    found.put({"validate/x.py": b"content\n"}, "/judge")
    found.start()
    assert [line.text for line in found.lines()] == ["content", "/cache"]


def test_past_its_time_it_is_ended(tmp_path: Path) -> None:
    found = container(tmp_path, "sleep", "600")
    found.start()
    with pytest.raises(TimedOut):
        list(found.lines(timeout=0.1))
    assert found.wait().code == KILLED


def test_it_ends_with_the_worker_that_is_killed(tmp_path: Path) -> None:
    """Where Apptainer makes its user namespace, the kernel forgets that it was to end with its parent."""
    program = "import os, sys; from images.apptainer.runtime import ApptainerContainer as C; "
    program += "c = C('x', ['sh', '-c', 'echo $$; exec sleep 600'], {}); c.start(); "
    program += "print(next(c.lines()).text, flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    process = Path("/proc") / done.stdout.strip()
    assert done.returncode == -signal.SIGKILL and process.name.isdigit()
    deadline = time.monotonic() + 60
    while process.exists() and "Z" not in (process / "stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.05)


DIES = """
import os
from images.apptainer import runtime
with runtime.scratch_folder():
    os.kill(os.getpid(), 9)
"""


def test_a_sweep_takes_what_a_killed_process_left_and_nothing_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path))
    subprocess.run([sys.executable, "-c", DIES], cwd=ROOT, check=False)
    (left,) = tmp_path.iterdir()
    (left / "root").mkdir()
    (left / "root" / "closed").mkdir(mode=0o500)
    with runtime.scratch_folder() as used:
        assert runtime.sweep() == (left.name,)
        assert list(tmp_path.iterdir()) == [used]
    (tmp_path / "truetag-apptainer-a" / "root").mkdir(parents=True)
    assert runtime.sweep() == ("truetag-apptainer-a",), "its lock was among what it had removed"
    assert list(tmp_path.iterdir()) == []


@contextmanager
def user_without_rights() -> Iterator[Path]:
    """Makes this process one that file modes hold for. Yields an empty folder of its own."""
    before = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        if before == 0:
            os.chown(name, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(before)


def test_an_image_of_closed_folders_and_links_goes_and_nothing_outside_is_touched() -> None:
    with user_without_rights() as place:
        own = place / "own"
        own.write_text("a file of the user's")
        own.chmod(0o640)
        root = place / "sandbox" / "root"
        for name in ("read-only", "unreadable"):
            (root / name / "inner").mkdir(parents=True)
            (root / name / "file").touch()
            for link, target in {"own": own, "dangling": place / "no", "passwd": "/etc/passwd", "up": place}.items():
                (root / name / link).symlink_to(target)
        (root / "read-only").chmod(0o555)
        (root / "unreadable").chmod(0)
        runtime.remove(root.parent)
        assert [path.name for path in place.iterdir()] == ["own"]
        assert own.stat().st_mode & 0o777 == 0o640


def test_what_can_not_be_removed_ends_neither_a_sweep_nor_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path))
    for name in ("a", "b", "c"):
        (tmp_path / f"truetag-apptainer-{name}").mkdir()
        (tmp_path / f"truetag-apptainer-{name}" / "lock").touch()
    (tmp_path / "truetag-apptainer-0").symlink_to(tmp_path / "gone")
    remove = runtime.remove

    def busy(path: Path) -> None:
        if path.name.endswith(("-b", "c")):
            raise OSError(16, "Device or resource busy")
        remove(path)

    monkeypatch.setattr(runtime, "remove", busy)
    assert runtime.sweep() == ("truetag-apptainer-a",)
    monkeypatch.setattr(runtime, "remove", lambda _path: busy(Path("c")))
    with runtime.scratch_folder() as used:
        (used / "verdict").touch()
    assert used.exists(), "for the next sweep"
