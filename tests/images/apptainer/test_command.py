"""Apptainer's command line gives a container what Docker's does, and nothing of the host's."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from images.apptainer import command
from images.apptainer.runtime import published
from images.engine import ContainerSpec

REFERENCE = "registry.test/lab/images@sha256:" + "1" * 64
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
    return command.exec_command(spec, IMAGE, Path("/x/root"), FOLDERS)


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
    assert after("--hostname", found) == ["validation"] and " validation\n" in command.HOSTS, "it resolves its own name"


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
    found = command.exec_command(SPEC, bare, Path("/x/root"), FOLDERS)
    assert any(word.startswith("PATH=/usr/local/sbin:") for word in found) and f"HOME={home}" in found
    assert after("--pwd", found) == ["/"]


def test_a_sites_variables_give_a_container_nothing() -> None:
    """A site's APPTAINER_BIND is added to the options, APPTAINERENV_X is set inside, even with --containall."""
    options = ("BIND", "BINDPATH", "MOUNT", "WRITABLE_TMPFS", "FAKEROOT", "NV", "OVERLAY", "CONTAINLIBS", "KEEP_PRIVS")
    site = {f"{own}_{name}": "x" for own in ("APPTAINER", "SINGULARITY") for name in options}
    inside = {"APPTAINERENV_LD_PRELOAD": "x", "SINGULARITYENV_X": "x"}
    kept = {"APPTAINER_CACHEDIR": "/c", "APPTAINER_TMPDIR": "/t", "SINGULARITY_DOCKER_PASSWORD": "p", "PATH": "/bin"}
    assert command.host_variables({**site, **inside, **kept}) == kept


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
    found = command.unsupported(spec)
    assert word in found and bool(found) is bool(word)


def test_gpus_come_by_nv_and_folders_of_any_name_by_mount() -> None:
    request = {"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}
    found = words(replace(SPEC, device_requests=(request,), binds={"/driver": "/driver"}))
    assert "--nv" in found and "--no-nv" not in found
    assert "type=bind,source=/driver,destination=/driver,ro" in after("--mount", found)
    found = command.exec_command(SPEC, IMAGE, Path("/x/root"), {"/tmp": Path('/a,b:c"d')})
    assert after("--mount", found) == ['type=bind,"source=/a,b:c""d",destination=/tmp'], "`--bind` splits at , and :"


def test_a_configuration_says_what_an_engine_would() -> None:
    assert (IMAGE.id, IMAGE.user, IMAGE.workdir) == ("sha256:" + "2" * 64, "1001", "/workspace")
    assert IMAGE.env["HOME"] == "/home/me" and IMAGE.layers == ("sha256:aa",) and IMAGE.digests == (REFERENCE,)
    assert published(REFERENCE, "sha256:0", {}).info.env == {}
