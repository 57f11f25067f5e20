"""Apptainer's command line gives a container what Docker's does, and nothing of the host's."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from images.apptainer import command
from images.apptainer.published import image_info
from images.engine import ContainerSpec
from images.engine.docker_types import DeviceRequest

REFERENCE = "registry.test/lab/images@sha256:" + "1" * 64
CONFIG = {
    "architecture": "amd64",
    "rootfs": {"diff_ids": ["sha256:aa"]},
    "config": {"Env": ["PATH=/opt/venv/bin:/usr/bin", "HOME=/home/me"], "WorkingDir": "/workspace", "User": "1001"},
}
IMAGE = image_info(REFERENCE, "sha256:" + "2" * 64, CONFIG)
SPEC = ContainerSpec(
    IMAGE.id, ["python3", "-I", "$HOME"], volumes=["/judge"], tmpfs={"/tmp": "rw"}, env={"TMPDIR": "/tmp"}
)
FOLDERS = {"/judge": Path("/x/0"), "/tmp": Path("/x/1"), "/etc/hosts": Path("/x/hosts")}


def words(spec: ContainerSpec = SPEC) -> list[str]:
    return command.exec_command(spec, IMAGE, Path("/x/root"), FOLDERS)


def after(option: str, found: list[str]) -> list[str]:
    return [value for name, value in pairwise(found) if name == option]


def test_a_container_gets_its_folders_and_nothing_else_of_the_host() -> None:
    found = words()
    assert after("--bind", found) == ["/x/0:/judge:ro", "/x/1:/tmp", "/x/hosts:/etc/hosts:ro"]
    assert {"--containall", "--no-home", "--no-privs"} < set(found)
    assert after("--no-mount", found) == ["tmp,cwd,bind-paths"]
    assert not {"--writable", "--writable-tmpfs", "--fakeroot", "--nv"} & set(found), "its root is read-only"


def test_it_has_no_network_and_resolves_its_own_name() -> None:
    found = words()
    assert after("--network", found) == ["none"] and "--net" in found
    assert after("--hostname", found) == ["trial"] and " trial\n" in command.HOSTS


def test_its_variables_are_those_of_docker() -> None:
    """Apptainer adds LD_LIBRARY_PATH, PS1 and others, which a claim would take for the image's."""
    found = words()
    start = found.index("/usr/bin/env")
    assert found[start : start + 2] == ["/usr/bin/env", "-i"]
    variables = dict(word.partition("=")[::2] for word in found[start + 2 : -3])
    own = {"PATH": "/opt/venv/bin:/usr/bin", "HOME": "/home/me", "TMPDIR": "/tmp", "HOSTNAME": "trial"}
    assert variables == own
    assert found[-3:] == ["python3", "-I", "$HOME"] and "--no-eval" in found, "arguments as they are"
    assert after("--pwd", found) == ["/workspace"]


def test_an_image_without_variables_has_dockers_path() -> None:
    bare = replace(IMAGE, env={}, workdir="")
    found = command.exec_command(SPEC, bare, Path("/x/root"), FOLDERS)
    assert command.environment(SPEC, bare)["PATH"].startswith("/usr/local/sbin:") and after("--pwd", found) == ["/"]


def test_gpus_come_by_nv() -> None:
    request = DeviceRequest(Driver="", Count=-1, DeviceIDs=None, Capabilities=[["gpu"]], Options={})
    found = words(replace(SPEC, device_requests=(request,), binds={"/driver": "/driver"}))
    assert "--nv" in found and "/driver:/driver:ro" in after("--bind", found)


def test_the_container_ends_with_whoever_started_it() -> None:
    assert words()[:4] == ["setpriv", "--pdeathsig", "KILL", "apptainer"]


@pytest.mark.parametrize("plain_http", [True, False])
def test_an_image_is_fetched_by_its_digest(plain_http: bool) -> None:
    found = command.pull_command(REFERENCE, Path("/x/root"), plain_http=plain_http)
    assert found[-2:] == ["/x/root", f"docker://{REFERENCE}"] and ("--no-https" in found) is plain_http
    assert "APPTAINER_TMPDIR=/x" in found, "what a killed one leaves is swept with the folder"


def test_a_configuration_says_what_an_engine_would() -> None:
    assert (IMAGE.id, IMAGE.user, IMAGE.workdir) == ("sha256:" + "2" * 64, "1001", "/workspace")
    assert IMAGE.env["HOME"] == "/home/me" and IMAGE.layers == ("sha256:aa",) and IMAGE.digests == (REFERENCE,)
    assert image_info(REFERENCE, "sha256:0", {}).env == {}
