"""What the SDK raises, as errors of ours; whose containers are swept; files of a container."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import docker.errors
import pytest
import requests
import urllib3.exceptions

from images.engine import OWNER_LABEL, EngineError, EngineErrorKind, NoSuchImage
from images.engine.archive import pack
from images.engine.containers import Container, engine_errors, is_orphan, process_identity
from tests.support.http_server import serving


def answered(status: int, said: str) -> docker.errors.APIError:
    response: Any = SimpleNamespace(status_code=status)
    kind = docker.errors.NotFound if status == 404 else docker.errors.APIError
    return kind("failed", response=response, explanation=said)


@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [
        (answered(404, "No such image: Me/image:1"), EngineErrorKind.NO_SUCH_IMAGE, 2),
        (
            answered(400, "invalid reference format: repository name (Me/image) must be lowercase"),
            EngineErrorKind.BAD_REFERENCE,
            2,
        ),
        (
            answered(500, "error setting rlimit type 8: operation not permitted"),
            EngineErrorKind.ULIMIT,
            1,
        ),
        (answered(500, "something else"), EngineErrorKind.OTHER, 1),
        (requests.exceptions.ConnectionError("gone"), EngineErrorKind.OTHER, 1),
        (urllib3.exceptions.ProtocolError("gone"), EngineErrorKind.OTHER, 1),
        (FileNotFoundError(2, "No such file or directory", "/a"), EngineErrorKind.OTHER, 1),
    ],
)
def test_errors_bear_their_kind(raised: Exception, kind: EngineErrorKind, code: int) -> None:
    with pytest.raises(EngineError) as told, engine_errors("Me/image:1", image="Me/image:1"):
        raise raised
    assert (told.value.kind, told.value.code) == (kind, code)
    assert isinstance(told.value, NoSuchImage) == (kind is EngineErrorKind.NO_SUCH_IMAGE)


def test_an_image_that_the_engine_lacks_is_built_by_its_own_name() -> None:
    with pytest.raises(NoSuchImage) as error, engine_errors("cu128-torch28", image="cu128-torch28"):
        raise answered(404, "No such image: cu128-torch28:latest")

    assert "`nox -s build -- cu128-torch28`" in error.value.problems[0].then


def test_a_file_that_cannot_be_sent_is_named_with_what_to_do(tmp_path: Path) -> None:
    # given a file that was removed, one that grows while it is read, and one on a broken disk:
    # reading the first bytes of /proc/self/mem gives EIO
    growing = tmp_path / "growing"
    growing.write_bytes(bytes(2 << 20))
    unreadable = {
        tmp_path / "removed": ("No such file or directory", "was removed"),
        growing: ("it changed its size while it was read", "no program writes this file"),
        Path("/proc/self/mem"): ("Input/output error", "disk that has this file"),
    }

    for file, (reason, step) in unreadable.items():
        with pytest.raises(EngineError) as error, engine_errors("build"):
            for _ in pack({"name": file}):
                growing.write_bytes(bytes(3 << 20))

        (problem,) = error.value.problems
        assert problem.cause == f"a file for the engine can't be read: {file}: {reason}"
        assert step in problem.then


def test_an_image_that_a_container_uses_is_told_with_the_next_command() -> None:
    answer = (
        'conflict: unable to remove repository reference "a:1" (must force) - '
        "container 207f3893172e is using its referenced image f361e14865a0"
    )

    with pytest.raises(EngineError) as error, engine_errors("a:1"):
        raise answered(409, answer)

    assert "`docker rm --force 207f3893172e`" in error.value.problems[0].then


def owner_of_a_process_that_ended() -> str:
    program = (
        "import os; from images.engine.containers import process_identity; "
        "print(process_identity(os.getpid()))"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_process_that_ended_leaves_orphans_though_a_later_one_has_its_number() -> None:
    assert not is_orphan({OWNER_LABEL: process_identity(os.getpid())})
    assert is_orphan({OWNER_LABEL: owner_of_a_process_that_ended()})
    assert is_orphan({OWNER_LABEL: f"{process_identity(os.getpid())}1"})


def test_a_process_of_another_machine_is_not_ours_to_judge() -> None:
    """Two machines of one name may share an engine: the same number lives there, or may."""
    machine, rest = owner_of_a_process_that_ended().split(":", 1)
    host, boot = machine.split("/")
    assert not is_orphan({OWNER_LABEL: f"{host}/another{boot}:{rest}"})
    assert not is_orphan({OWNER_LABEL: f"another{host}/{boot}:{rest}"})
    assert not is_orphan({}) and not is_orphan({OWNER_LABEL: f"{machine}:{os.getpid()}x:"})


def test_an_engine_that_goes_away_in_the_middle_of_an_answer_is_told_with_the_next_step() -> None:
    with serving() as server:
        # One chunk of 9 bytes, and then nothing more.
        headers = {"Transfer-Encoding": "chunked", "Content-Length": ""}
        server.answer = lambda *_: (200, headers, b'9\r\n{"id": 1}\r\n')
        sdk = docker.APIClient(f"tcp://{server.host}", version="1.41")
        with pytest.raises(EngineError) as error, engine_errors("build"):
            answer = sdk._get(sdk._url("/build"), stream=True)
            list(sdk._stream_helper(answer, decode=True))

    (problem,) = error.value.problems
    assert "its answer ended in the middle" in problem.cause
    assert "`docker info`" in problem.then


# --- files of a container -------------------------------------------------------------------------


def container_that_sends(*members: tuple[str, bytes, bytes]) -> Container:
    """Return a container whose engine answers every path with a tar: name, type and content."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(content)
            tar.addfile(info, io.BytesIO(content))
    sdk = SimpleNamespace(get_archive=lambda _id, _path: ([stream.getvalue()], {}))
    return Container(sdk, "id", "name")


def test_a_file_of_a_container_is_read() -> None:
    container = container_that_sends(("passwd", tarfile.REGTYPE, b"root:x:0:0\n"))

    assert container.get_file("/etc/passwd") == b"root:x:0:0\n"
    assert container.get_file("/etc/passwd", most=4) == b"root"


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE])
def test_what_is_no_file_is_not_read_nor_what_lies_in_it(kind: bytes) -> None:
    """A folder at /etc/passwd was taken for a file because there was one in it."""
    container = container_that_sends(
        ("passwd", kind, b""), ("passwd/shadow", tarfile.REGTYPE, b"root:x:0:0\n")
    )

    with pytest.raises(FileNotFoundError):
        container.get_file("/etc/passwd", most=1)
