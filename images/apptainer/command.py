"""The command line of one container, from the specification that Docker gets. Pure.

`apptainer exec` gives a container more of the host than Docker: the user's home, /tmp, variables, files of /etc. Each
option here takes one of them away. Source of every rule: Apptainer's user guide 1.4, "Bind Paths and Mounts",
"Environment and Metadata", "Security Options", "Network virtualization".
"""

from __future__ import annotations

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
    "tmp,cwd,bind-paths",  # /tmp, the caller's folder, and what apptainer.conf binds (/etc/hosts, /etc/localtime)
    "--no-eval",  # arguments as they are, as Docker takes them
    "--no-privs",
    "--net",
    "--network",
    "none",
    "--hostname",
    HOST_NAME,
)


_UNTIL_PARENT_ENDS = ("setpriv", "--pdeathsig", "KILL")
"""The kernel ends it with the thread that started it. Where Apptainer is installed setuid, it goes on to its end."""


def pull_command(reference: str, sandbox: Path, *, plain_http: bool) -> list[str]:
    """Unpacks an image of a registry into a folder, with all that it needs meanwhile beside it.

    Apptainer holds each layer to the digests of the manifest.
    """
    http = ["--no-https"] if plain_http else []
    scratch = f"APPTAINER_TMPDIR={sandbox.parent}"
    build = [PROGRAM, "--silent", "build", "--sandbox", *http, str(sandbox), f"docker://{reference}"]
    return ["env", scratch, *_UNTIL_PARENT_ENDS, *build]


def exec_command(spec: ContainerSpec, image: ImageInfo, sandbox: Path, folders: Mapping[str, Path]) -> list[str]:
    """Runs the command of a container. The root is read-only, as Apptainer has it without `--writable`.

    `folders`: path in the container -> folder of this machine, for the spec's volumes (read-only inside: the caller
    fills them), for its tmpfs, and for /etc/hosts.
    """
    binds = {path: str(folder) for path, folder in folders.items()}
    read_only = {*spec.volumes, "/etc/hosts"}
    bound = [f"{folder}:{path}{':ro' if path in read_only else ''}" for path, folder in binds.items()]
    bound += [f"{outside}:{inside}:ro" for outside, inside in spec.binds.items()]
    return [
        *_UNTIL_PARENT_ENDS,
        *(PROGRAM, "--silent", "exec", *_ALONE),
        *(["--nv"] if spec.device_requests else []),
        *("--pwd", image.workdir or "/"),
        *(word for one in bound for word in ("--bind", one)),
        str(sandbox),
        *("/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment(spec, image).items())),
        *spec.cmd,
    ]


def environment(spec: ContainerSpec, image: ImageInfo) -> dict[str, str]:
    """The variables that Docker would set: Apptainer's own (LD_LIBRARY_PATH, PS1, ...) are no part of the image."""
    return {"PATH": _PATH, "HOSTNAME": HOST_NAME, "HOME": "/", **image.env, **spec.env}
