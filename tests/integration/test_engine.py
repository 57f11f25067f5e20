"""Docker as we use it, on a real engine: builds, interrupts, containers, and clean layers."""

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from images.config.names import Minor
from images.context.base_images import acquire
from images.context.hosting import HostSettings
from images.context.labels import BaseContext
from images.engine import (
    RUN_LABEL,
    ContainerSpec,
    Engine,
    NoSuchImage,
    Stopped,
    configuration,
    connect,
    private_engine,
)
from images.engine.buildkit import BuildEvent, LogLine, StepFinished
from images.engine.failures import BuildFailed
from images.errors import UserError
from images.planning.image import Base
from tests.support.checkout import ROOT
from tests.support.engine_contents import containers, volumes

pytestmark = pytest.mark.engine

MIB = 1 << 20


@pytest.fixture
def tag(engine: Engine) -> Iterator[str]:
    """Yield a name that nobody uses. Its image is removed when the test ends."""
    name = f"truetag-test:{uuid.uuid4().hex[:12]}"
    yield name
    engine.remove(name, force=True)


def dockerfile(base: BaseContext, *lines: str) -> bytes:
    """Return a Dockerfile with these lines on a base."""
    return "\n".join((f"FROM {base.reference} AS test", *lines, "")).encode()


def nonce() -> str:
    """Return the begin of a command by which no cache has its step."""
    return f": {uuid.uuid4().hex};"


def anything_running(word: str) -> bool:
    """Return whether a `sleep` with this argument runs on this machine, as build steps do."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = command.read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[0] == b"sleep" and word.encode() in arguments:
            return True
    return False


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> bool:
    """Wait until a condition holds, and return whether it did in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def test_a_build_with_mounts_and_its_second_run_from_the_cache(
    engine: Engine, base: BaseContext, tag: str
) -> None:
    cache = f"--mount=type=cache,target=/cache,id={uuid.uuid4().hex}"
    files = {
        "Dockerfile": dockerfile(
            base,
            f"RUN {cache} --mount=type=bind,source=host,target=/host {nonce()} "
            "cat /host/word | tee /cache/kept",
            f"RUN {cache} cat /cache/kept > /result; printf 'half a line'",
        ),
        "host/word": b"from the context\n",
    }
    events: list[BuildEvent] = []

    first = engine.build(files, tag, network="none", on_event=events.append)

    assert engine.inspect(tag).handle == first.image_id
    printed = [event.text for event in events if isinstance(event, LogLine)]
    assert printed == ["from the context", "half a line"]
    steps = [step for step in first.steps if "[test" in step.name and "RUN" in step.name]
    assert [step.cached for step in steps] == [False, False]
    assert all(step.seconds > 0 for step in steps)

    second = engine.build(files, tag, network="none")

    assert second.image_id == first.image_id
    assert all(step.cached for step in second.steps if "RUN" in step.name), second.steps

    with engine.container(ContainerSpec(tag, ["cat", "/result", "/host/word"])) as container:
        output = container.run(300)
    assert output.stdout == "from the context\n", "the mounted file is gone"


def test_a_failed_step_is_named_by_its_last_words_and_has_no_tag(
    engine: Engine, base: BaseContext, tag: str
) -> None:
    events: list[BuildEvent] = []
    step = f"RUN {nonce()} echo before; apt-get install -y nosuchpackage"
    context = {"Dockerfile": dockerfile(base, step)}

    with pytest.raises(BuildFailed) as raised:
        engine.build(context, tag, network="none", on_event=events.append)

    error = raised.value
    assert error.failure.kind == "apt"
    # The engine may read the two outputs of a step in any order.
    assert {"before", "E: Unable to locate package nosuchpackage"} <= set(error.log)
    assert "nosuchpackage" in error.step
    assert "exit code: 100" in error.error
    assert any(isinstance(event, StepFinished) and event.error for event in events)
    assert engine.find(tag) is None


def test_network_trouble_is_tried_again_with_longer_pauses_and_nothing_else_is(
    engine: Engine, base: BaseContext, tag: str
) -> None:
    network_trouble = f"RUN {nonce()} echo 'Temporary failure resolving mirror.test'; exit 100"
    another_fault = f"RUN {nonce()} echo 'error: Hash mismatch for x'; exit 1"
    pauses: list[float] = []
    events: list[BuildEvent] = []

    with pytest.raises(BuildFailed):
        engine.build(
            {"Dockerfile": dockerfile(base, network_trouble)},
            tag,
            network="none",
            sleep=pauses.append,
            on_event=events.append,
        )

    assert pauses == [5, 10]
    messages = [event.text for event in events if isinstance(event, LogLine) and not event.step]
    attempts = [message.rpartition("; ")[2] for message in messages]
    assert attempts == ["attempt 2 of 3 in 5 s", "attempt 3 of 3 in 10 s"]

    pauses.clear()
    with pytest.raises(BuildFailed):
        engine.build(
            {"Dockerfile": dockerfile(base, another_fault)},
            tag,
            network="none",
            sleep=pauses.append,
        )

    assert pauses == []


def test_a_broken_dockerfile_and_a_missing_context_file_are_reported(
    engine: Engine, tag: str, tmp_path: Path
) -> None:
    with pytest.raises(BuildFailed) as raised:
        engine.build({"Dockerfile": b"FROM scratch\nRUNN x\n"}, tag)
    assert raised.value.failure.kind == "dockerfile"

    with pytest.raises(UserError, match="gone"):
        engine.build({"Dockerfile": b"FROM scratch\n", "x": tmp_path / "gone"}, tag)


def test_a_large_context_is_streamed(
    engine: Engine, base: BaseContext, tag: str, tmp_path: Path
) -> None:
    big = tmp_path / "big"
    with big.open("wb") as stream:
        stream.truncate(100 * MIB)
    count_bytes = "RUN --mount=type=bind,target=/c wc -c < /c/big > /n"

    engine.build({"Dockerfile": dockerfile(base, count_bytes), "big": big}, tag, network="none")

    with engine.container(ContainerSpec(tag, ["cat", "/n"])) as container:
        assert container.run(300).stdout == f"{100 * MIB}\n"


INTERRUPTED = """
import sys
from images.engine import connect
engine = connect()
engine.build({"Dockerfile": sys.argv[1].encode()}, sys.argv[2])
"""


def test_ctrl_c_stops_the_build_in_the_engine_and_leaves_no_tag(
    engine: Engine, base: BaseContext, tag: str
) -> None:
    # Nobody else sleeps for so long.
    seconds = f"9{uuid.uuid4().int % 10**8}"
    text = dockerfile(base, f"RUN sleep {seconds}; true").decode()
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, text, tag],
        cwd=ROOT,
        env={**os.environ, "DOCKER_HOST": engine.facts.url},
        stderr=subprocess.DEVNULL,
    )
    assert wait_until(lambda: anything_running(seconds)), "the build never got to its step"

    process.send_signal(signal.SIGINT)

    assert process.wait(120) != 0
    has_ended = wait_until(lambda: not anything_running(seconds))
    assert has_ended, "the step goes on running in the engine"
    assert engine.find(tag) is None


def count_own_containers(engine: Engine) -> int:
    """Return how many containers of this test run there are."""
    return len(containers(engine, f"{RUN_LABEL}={engine.run_id}"))


def test_files_get_into_a_read_only_container_through_a_volume(
    engine: Engine, base: BaseContext
) -> None:
    script = "cat /suite/a/b.txt; touch /x; echo kept > /suite/out; id -u; echo $WORD"
    command = ["sh", "-c", script]
    spec = ContainerSpec(base.reference, command, volumes=["/suite"], env={"WORD": "w"})

    with engine.container(spec) as container:
        container.put({"a/b.txt": b"from outside\n"}, "/suite")
        output = container.run(300)

        assert container.get_file("/suite/out") == b"kept\n"
        with pytest.raises(FileNotFoundError):
            container.get_file("/suite/none")
        # A folder is no file, though there is one in it.
        with pytest.raises(FileNotFoundError):
            container.get_file("/suite/a")
    assert output.stdout == "from outside\n0\nw\n"
    assert "Read-only file system" in output.stderr
    assert output.code == 0


def test_a_link_is_followed_within_the_container(engine: Engine, base: BaseContext) -> None:
    script = (
        "echo linked > /suite/file; ln -s ../suite/file /suite/relative;"
        " ln -s /suite/relative /suite/chain; ln -s ../../../suite/file /suite/up;"
        " ln -s /suite/none /suite/broken; ln -s /etc /suite/folder"
    )
    spec = ContainerSpec(base.reference, ["sh", "-c", script], volumes=["/suite"])

    with engine.container(spec) as container:
        assert container.run(300).code == 0

        for name in ("relative", "chain", "up"):
            assert container.get_file(f"/suite/{name}") == b"linked\n", name
        for name in ("broken", "folder"):
            with pytest.raises(FileNotFoundError):
                container.get_file(f"/suite/{name}")


def test_there_is_no_network(engine: Engine, base: BaseContext) -> None:
    with engine.container(ContainerSpec(base.reference, ["cat", "/proc/net/dev"])) as container:
        lines = container.run(300).stdout.splitlines()[2:]

    interfaces = [line.split(":")[0].strip() for line in lines]
    others = [interface for interface in interfaces if "lo" not in interface]
    # Some kernels give every network a tunnel that leads nowhere.
    assert others in ([], ["sit0"], ["tunl0"])


@pytest.mark.parametrize("way_out", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_container_and_its_volume_go_on_every_way_out(
    engine: Engine, base: BaseContext, way_out: type[BaseException]
) -> None:
    with (
        pytest.raises(way_out),
        engine.container(
            ContainerSpec(base.reference, ["sleep", "600"], volumes=["/s"])
        ) as container,
    ):
        container.start()
        assert len(volumes(engine, f"{RUN_LABEL}={engine.run_id}")) == 1
        raise way_out
    assert count_own_containers(engine) == 0
    assert not volumes(engine, f"{RUN_LABEL}={engine.run_id}")


_SLOW_SSH = """
import os, subprocess, time

away = subprocess.Popen(
    ["docker", "--host", {url!r}, "system", "dial-stdio"], stdin=subprocess.PIPE, bufsize=0
)
os.close(1)
while part := os.read(0, 65536):
    time.sleep(0.3)
    away.stdin.write(part)
"""


def test_what_is_sent_to_a_container_arrives_over_a_slow_ssh(
    engine: Engine, base: BaseContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text(f"#!{sys.executable}{_SLOW_SSH.format(url=engine.facts.url)}")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    spec = ContainerSpec(base.reference, ["sh", "-c", "read word; echo got $word"], stdin=True)
    with connect("ssh://builder:22") as away, away.container(spec) as container:
        container.start(b"this\n")
        assert [text for _, text in container.lines(timeout=120)] == ["got this"]


def test_too_long_a_run_is_stopped(engine: Engine, base: BaseContext) -> None:
    start = time.monotonic()
    with (
        pytest.raises(Stopped, match="within 1 s"),
        engine.container(ContainerSpec(base.reference, ["sleep", "600"])) as container,
    ):
        container.run(timeout=1)
    assert time.monotonic() - start < 600, "it was not waited for"
    assert count_own_containers(engine) == 0


def test_lines_arrive_while_it_runs(engine: Engine, base: BaseContext) -> None:
    with engine.container(
        ContainerSpec(base.reference, ["sh", "-c", "echo one; sleep 600"])
    ) as container:
        container.start()
        assert next(container.lines(timeout=300))[1] == "one"


def test_a_bounded_memory_is_a_bound_and_the_kill_is_told(
    engine: Engine, base: BaseContext
) -> None:
    # It lives on until the engine has heard of it. containerd may not be told why a group ended
    # that was killed.
    hog = ["sh", "-c", "head -c 400m /dev/zero | tail; exec sleep 600"]
    with engine.container(ContainerSpec(base.reference, hog, memory=100 * MIB)) as container:
        container.start()
        next(engine.sdk.events(since=1, filters={"container": [container.id], "event": ["oom"]}))
        container.kill()
        assert container.wait(300).oom
    with engine.container(ContainerSpec(base.reference, ["true"], memory=100 * MIB)) as container:
        assert container.run(300).oom is False


def test_no_such_image(engine: Engine) -> None:
    with (
        pytest.raises(NoSuchImage, match="truetag-none:1"),
        engine.container(ContainerSpec("truetag-none:1", ["true"])),
    ):
        pass
    assert engine.find("truetag-none:1") is None
    engine.remove("truetag-none:1")


KILLED = """
import os, signal, sys
from images.engine import ContainerSpec, connect
engine = connect()
with engine.container(ContainerSpec(sys.argv[1], ["sleep", "600"], volumes=["/s"])) as container:
    container.start()
    print(container.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_swept_and_nothing_of_the_living(
    engine: Engine, base: BaseContext
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, base.reference],
        cwd=ROOT,
        env={**os.environ, "DOCKER_HOST": engine.facts.url},
        capture_output=True,
        text=True,
        check=False,
    )
    # From now on, any other command of this machine may sweep its container, too.
    left_behind = killed.stdout.strip()
    assert killed.returncode == -signal.SIGKILL and left_behind

    with engine.container(ContainerSpec(base.reference, ["sleep", "600"])) as living:
        # Every verb opens the engine like this.
        with private_engine.open_engine(engine.facts.url, on_progress=print):
            pass
        # Another command of this machine may be about to remove it just now.
        remaining = [row.id for row in containers(engine) if row.state != "removing"]

    assert left_behind not in remaining
    assert living.id in remaining


def test_the_gateway_keeps_its_address_while_containers_come_and_go(
    engine: Engine, base: BaseContext
) -> None:
    """Otherwise the other containers would send to nobody until their ARP entry expires."""
    ask = "echo 2> /dev/null > /dev/tcp/$gateway/9; grep -o '..:..:..:..:..:..' /proc/net/arp"
    gateway = "hex=$(awk '$2 == \"00000000\" {print $3}' /proc/net/route); "
    gateway += (
        "gateway=$((16#${hex:6:2})).$((16#${hex:4:2})).$((16#${hex:2:2})).$((16#${hex:0:2})); "
    )
    command = ["bash", "-c", gateway + ask]
    addresses = set()

    for _ in range(3):
        with engine.container(
            ContainerSpec(base.reference, command, network="bridge")
        ) as container:
            addresses.add(container.run(120).stdout)
    assert len(addresses) == 1
    assert re.fullmatch("(..:){5}..\n", addresses.pop())


def test_names_and_labels(engine: Engine, base: BaseContext, tag: str) -> None:
    label = f"dev.truetag.test={uuid.uuid4().hex}"
    lines = (f"LABEL {label}", "ENV A=b", "USER 12", "WORKDIR /tmp", 'CMD ["x"]')
    built = engine.build({"Dockerfile": dockerfile(base, *lines)}, tag)
    info = engine.inspect(tag)
    assert (info.env["A"], info.user, info.workdir, info.command) == ("b", "12", "/tmp", ("x",))
    assert info.architecture == "amd64"
    assert info.size > 50 * MIB
    assert info.layers == engine.inspect(built.image_id).layers
    assert (
        info.layers[: len(engine.inspect(base.reference).layers)]
        == engine.inspect(base.reference).layers
    )
    assert [found["Id"] for found in engine.sdk.images(filters={"label": label})] == [
        built.image_id
    ]
    assert any("USER 12" in text for text, _ in engine.history(tag))
    engine.tag(tag, f"{tag}-second")
    engine.untag(tag)
    assert engine.find(tag) is None
    assert engine.inspect(f"{tag}-second").handle == built.image_id
    engine.remove(f"{tag}-second")


def test_an_engine_that_was_named_is_never_replaced_by_another(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nobody = f"unix://{tmp_path}/nobody.sock"
    with pytest.raises(UserError, match=r"--engine: .*nobody\.sock"):
        connect(nobody)
    monkeypatch.setenv("DOCKER_HOST", nobody)
    with pytest.raises(UserError, match="DOCKER_HOST"):
        connect()
    with connect(engine.facts.url) as found:
        assert found.facts.url == engine.facts.url


def test_dockers_current_context_is_honoured(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text('{"currentContext": "elsewhere"}')
    with pytest.raises(UserError, match="context"):
        connect()
    meta = tmp_path / "contexts" / "meta" / hashlib.sha256(b"elsewhere").hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(
        '{"Name": "elsewhere", "Metadata": {}, '
        f'"Endpoints": {{"docker": {{"Host": "{engine.facts.url}"}}}}}}'
    )
    with connect() as found:
        assert found.facts.url == engine.facts.url


def test_a_base_that_cannot_be_had_is_said(engine: Engine) -> None:
    base = Base(
        key="none",
        reference="truetag-none.invalid/none:1",
        suite=None,
        python=Minor(3, 11),
        glibc=Minor(2, 36),
    )
    with pytest.raises(UserError, match="no registry answers"):
        acquire(engine, base, root=ROOT, host=HostSettings(), on_progress=print)


def test_an_image_has_the_id_of_its_content(engine: Engine, base: BaseContext, tag: str) -> None:
    """Two builds, minutes apart as their engine dates them, are one image, which runs."""
    lines = ("RUN echo 1 >/x && touch -d @0 /x /", "ENV A=b", f"LABEL which={tag}")
    found = []
    for _ in range(2):
        built = engine.build({"Dockerfile": dockerfile(base, *lines)}, tag, no_cache=True)
        found.append(engine.fix_id(built.image_id, tag))
        assert engine.find(built.image_id) is None, "nobody keeps the one that the engine dated"
    assert found[0] == found[1] and found[0].created == configuration.CREATED
    assert found[0].env["A"] == "b" and found[0].labels["which"] == tag
    with engine.container(ContainerSpec(tag, ["cat", "/x"])) as container:
        assert container.run(120).stdout == "1\n"
