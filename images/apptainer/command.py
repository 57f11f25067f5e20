"""The command line of one container, from the specification that Docker gets, and its variables. Pure.

`apptainer exec` gives a container more of the host than Docker: the user's home, /tmp, variables, files of /etc, and
what the site's variables and apptainer.conf name. Each option here takes one of them away. Source of every rule:
Apptainer's user guide 1.4, "Bind Paths and Mounts", "Environment and Metadata", "Security Options", "Network
virtualization"; for the hidden `--no-nv` and `--no-rocm` its source, cmd/internal/cli/action_flags.go.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path

from images.engine import ContainerSpec, ImageInfo
from images.engine.containers import HOST_NAME

PROGRAM = "apptainer"

HOSTS = f"127.0.0.1\tlocalhost {HOST_NAME}\n::1\tlocalhost\n"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Docker's, for images that set none."""
_ALONE = (
    "--containall",  # own processes and IPC, few devices, none of the caller's variables
    "--no-home",
    "--no-mount",
    # /tmp, the caller's folder, the host's file systems, and what apptainer.conf binds (/etc/hosts, /etc/localtime)
    "tmp,cwd,hostfs,bind-paths",
    "--no-rocm",
    "--no-eval",  # arguments as they are, as Docker takes them
    "--no-privs",
    "--net",
    "--network",
    "none",
    "--hostname",
    HOST_NAME,
)
_OPTION = re.compile(
    "(APPTAINER|SINGULARITY)(?!_(CACHEDIR|CONFIGDIR|TMPDIR|DISABLE_CACHE|AUTH_FILE|DOCKER_USERNAME|DOCKER_PASSWORD)$)"
)
"""Not where Apptainer keeps its files and how it logs in: nothing of a container depends on those."""


def host_variables(caller: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables without Apptainer's options: a site's APPTAINER_BIND is added to `--mount`, and others
    make the root writable or set variables inside."""
    return {name: value for name, value in caller.items() if not _OPTION.match(name)}


def unsupported(spec: ContainerSpec) -> str:
    """What of a specification Apptainer can't give a container; empty: nothing. Bounds (memory, processes, /dev/shm)
    are no part of it: nobody has them there (docs/podman-apptainer.md)."""
    wanted = {
        "a user of its own": spec.user is not None,
        "volumes with the image's content": bool(spec.copied_volumes),
        "a network": spec.network != "none",
        "a writable root": not spec.read_only,
        "single devices": bool(spec.devices),
    }
    return ", ".join(name for name, asked in wanted.items() if asked)


def exec_command(spec: ContainerSpec, image: ImageInfo, sandbox: Path, folders: Mapping[str, Path]) -> list[str]:
    """Runs the command of a container. The root is read-only, as Apptainer has it without `--writable`.

    Its variables are those that Docker would set: Apptainer's own (LD_LIBRARY_PATH, PS1, ...) are no part of the image.
    `folders`: path in the container -> folder of this machine, for the spec's volumes (read-only inside: the caller
    fills them), for its tmpfs, and for /etc/hosts.
    """
    read_only = {*spec.volumes, *spec.binds.values(), "/etc/hosts"}
    mounts = []
    for path, folder in [*folders.items(), *((inside, outside) for outside, inside in spec.binds.items())]:
        row = io.StringIO()  # the value of `--mount` is CSV; `--bind` splits paths at commas and colons
        fields = ["type=bind", f"source={folder}", f"destination={path}", *(["ro"] if path in read_only else [])]
        csv.writer(row, lineterminator="").writerow(fields)
        mounts += ["--mount", row.getvalue()]
    home = "/root" if image.user.partition(":")[0] in ("", "0", "root") else "/"
    variables = {"PATH": _PATH, "HOSTNAME": HOST_NAME, "HOME": home, **image.env, **spec.env}
    return [
        *(PROGRAM, "--silent", "exec", *_ALONE),
        "--nv" if spec.device_requests else "--no-nv",  # without a word it is for apptainer.conf to say
        *("--pwd", image.workdir or "/"),
        *mounts,
        str(sandbox),
        *("/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items())),
        *spec.cmd,
    ]
