"""What the SDK raises, as errors of ours with a kind; and that nobody else uses what the SDK keeps private."""

import re
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest
import requests

from images.engine import EngineError, EngineErrorKind, NoSuchImage
from images.engine.responses import asking
from tests.support.checkout import ROOT


def answered(status: int, said: str) -> docker.errors.APIError:
    response: Any = SimpleNamespace(status_code=status)
    kind = docker.errors.NotFound if status == 404 else docker.errors.APIError
    return kind("failed", response=response, explanation=said)


@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [
        (answered(404, "No such image: a:1"), EngineErrorKind.NO_SUCH_IMAGE, 2),
        (answered(400, "invalid reference format"), EngineErrorKind.BAD_REFERENCE, 2),
        (answered(500, "error setting rlimit type 8: operation not permitted"), EngineErrorKind.ULIMIT, 1),
        (answered(500, "something else"), EngineErrorKind.OTHER, 1),
        (requests.exceptions.ConnectionError("gone"), EngineErrorKind.CONNECTION, 1),
        (FileNotFoundError(2, "No such file or directory", "/a"), EngineErrorKind.LOCAL_FILE, 1),
    ],
)
def test_errors_bear_their_kind(raised: Exception, kind: EngineErrorKind, code: int) -> None:
    with pytest.raises(EngineError) as told, asking("here", image="a:1"):
        raise raised
    assert (told.value.kind, told.value.code) == (kind, code)
    assert isinstance(told.value, NoSuchImage) == (kind is EngineErrorKind.NO_SUCH_IMAGE)


def test_an_image_that_a_container_uses_is_told_with_the_next_command() -> None:
    said = 'conflict: unable to remove repository reference "a:1" (must force) - container 207f3893172e is using its '
    with pytest.raises(EngineError) as told, asking("a:1"):
        raise answered(409, said + "referenced image f361e14865a0")
    assert "`docker rm --force 207f3893172e`" in told.value.problems[0].then


def test_a_missing_file_stays_the_sdks_error_where_that_is_asked_for() -> None:
    with pytest.raises(docker.errors.NotFound), asking("here", missing="/file"):
        raise answered(404, "Could not find the file")


def test_one_module_alone_uses_what_the_sdk_keeps_private() -> None:
    private = re.compile(r"\b(?:sdk|_sdk|_api|api)\._[a-z]|\._auth_configs|\._raise_for_status|\._stream_helper")
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "images").rglob("*.py")
        if private.search(path.read_text())
    }
    assert found == {"images/engine/docker_api.py"}
