"""Says what serves in place of options of `docker run` where another program starts containers.

A remedy such as `--shm-size=8g` helps nobody whose cluster has no Docker: nvidia-blackfish's users
met that (princeton-ddss/blackfish#366). The programs are Kubernetes, Slurm with pyxis (which starts
containers by enroot), Apptainer and Podman. Sources: the API reference of Kubernetes' PodSpec;
enroot's conf/mounts/10-system.fstab and conf/hooks/98-nvidia.sh, and pyxis' page `Usage`;
Apptainer's user guide ("Bind Paths and Mounts", "GPU Support", "Limiting Container Resources");
podman-run(1).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_END = r"(?![\w-])"
"""A regular expression for the end of an option's name: `--gpus` is not `--gpus-per-node`."""
_SAME = "the same option"
_HOST_DEVICES = "no option is needed: containers have the host's /dev"


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """What serves in place of an option of `docker run`, or that nothing does."""

    option: str
    """The option as people know it: `--gpus`."""
    pattern: str
    """A regular expression for the option, searched for in a text after a space or a backtick."""
    kubernetes: str
    pyxis: str
    apptainer: str
    podman: str

    def __str__(self) -> str:
        return (
            f"Without Docker, in place of `{self.option}`: Kubernetes: {self.kubernetes}; "
            f"Slurm with pyxis: {self.pyxis}; Apptainer: {self.apptainer}; Podman: {self.podman}."
        )

    def is_in(self, text: str) -> bool:
        """Return whether a text has this option."""
        return bool(re.search(rf"(?<![\w/-])(?:{self.pattern})", text))


REPLACEMENTS = (
    Replacement(
        option="--gpus",
        pattern=rf"--gpus{_END}|--runtime=nvidia{_END}|--device (?:nvidia\.com/gpu|/dev/nvidia)",
        kubernetes="`nvidia.com/gpu` under `resources.limits`, and the runtime class `nvidia`",
        pyxis="`srun --gpus=N`, and NVIDIA_VISIBLE_DEVICES=all with "
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility in the image or exported before it: without "
        "them enroot's hook 98-nvidia.sh mounts no driver",
        apptainer="`--nv`",
        podman="`--device nvidia.com/gpu=all`",
    ),
    Replacement(
        option="--shm-size, --ipc=host",
        pattern=rf"--shm-size{_END}|--ipc=host{_END}",
        kubernetes="an `emptyDir` of `medium: Memory`, mounted on /dev/shm",
        pyxis="no option is needed: containers have the host's /dev/shm",
        apptainer="no option is needed: containers have the host's /dev/shm",
        podman=_SAME,
    ),
    Replacement(
        option="--ulimit",
        pattern=rf"--ulimit{_END}",
        kubernetes="nothing in a pod: the node's container runtime sets limits (`LimitMEMLOCK` and "
        "`LimitNOFILE` of its systemd unit)",
        pyxis="the job's limits hold: `ulimit` before `srun`, and for locked memory "
        "`PropagateResourceLimitsExcept=MEMLOCK` in slurm.conf",
        apptainer="the shell's limits hold: `ulimit` before `apptainer`",
        podman="the same option, without root up to the user's hard limit",
    ),
    Replacement(
        option="--cap-add",
        pattern=rf"--cap-add{_END}",
        kubernetes="`securityContext.capabilities.add`",
        pyxis="nothing: containers have the user's own rights",
        apptainer="nothing without the administrator, who may allow `--add-caps`",
        podman=_SAME,
    ),
    Replacement(
        option="--network host",
        pattern=rf"--network[ =]host{_END}",
        kubernetes="`hostNetwork: true`",
        pyxis="no option is needed: containers have the host's network",
        apptainer="no option is needed: containers have the host's network",
        podman=_SAME,
    ),
    Replacement(
        option="--device",
        pattern=r"--device /dev/(?!nvidia)",
        kubernetes="a device plugin that offers it, such as NVIDIA's rdma-shared-device-plugin",
        pyxis=_HOST_DEVICES,
        apptainer=_HOST_DEVICES,
        podman=_SAME,
    ),
    Replacement(
        option="--memory",
        pattern=rf"--memory{_END}",
        kubernetes="`memory` under `resources.limits`",
        pyxis="`--mem` of the job",
        apptainer="nothing of its own is needed: the job's or machine's memory is the limit",
        podman=_SAME,
    ),
    Replacement(
        option="--pids-limit",
        pattern=rf"--pids-limit{_END}",
        kubernetes="nothing in a pod: `podPidsLimit` of the kubelet",
        pyxis="the job's limit holds: `ulimit -u` before `srun`",
        apptainer="the shell's limit holds: `ulimit -u` before `apptainer`",
        podman=_SAME,
    ),
    Replacement(
        option="--security-opt",
        pattern=rf"--security-opt{_END}",
        kubernetes="`securityContext.seccompProfile`, for SELinux `securityContext.seLinuxOptions`",
        pyxis="nothing: enroot has a filter of its own",
        apptainer="nothing is needed: there is no filter unless one is asked for",
        podman=_SAME,
    ),
    Replacement(
        option="--user",
        pattern=r"--user \S",
        kubernetes="`securityContext.runAsUser` and `fsGroup`",
        pyxis="no option is needed: the container's user is the job's",
        apptainer="no option is needed: the container's user is you",
        podman="`--userns=keep-id --user $(id -u):$(id -g)`",
    ),
    Replacement(
        option="--group-add",
        pattern=rf"--group-add{_END}",
        kubernetes="`securityContext.supplementalGroups`",
        pyxis="nothing: containers have the user's own rights",
        apptainer="no option is needed: containers have your groups",
        podman="`--group-add keep-groups`",
    ),
    Replacement(
        option="-v",
        pattern=rf"-v \S+:/|--volume{_END}",
        kubernetes="a volume and its `volumeMounts`",
        pyxis="`--container-mounts=SOURCE:TARGET`",
        apptainer="`--bind SOURCE:TARGET`",
        podman="the same option, on SELinux with `:Z` behind the target",
    ),
    Replacement(
        option="--tmpfs",
        pattern=rf"--tmpfs{_END}",
        kubernetes="an `emptyDir`, mounted there",
        pyxis="`--container-mounts` of a folder of yours; /tmp is a tmpfs already",
        apptainer="`--writable-tmpfs`, or `--bind` of a folder of yours; /tmp is the host's",
        podman=_SAME,
    ),
    Replacement(
        option="-e",
        pattern=r"-e [A-Z]\w+",
        kubernetes="`env` of the container",
        pyxis="`export` it before `srun`; where the image sets it too, `--container-env=NAME`",
        apptainer="`--env NAME=VALUE`",
        podman=_SAME,
    ),
    Replacement(
        option="-p",
        pattern=rf"-p \d+:\d+|--publish{_END}",
        kubernetes="a Service, or `kubectl port-forward`",
        pyxis="no option is needed: containers have the host's network",
        apptainer="no option is needed: containers have the host's network",
        podman=_SAME,
    ),
)
"""Every option of `docker run` that a text of ours proposes, in the order in which it is shown."""


def replacements_in(text: str) -> Iterator[str]:
    """Yield a sentence for each option of `docker run` in a text: what serves without Docker."""
    for replacement in REPLACEMENTS:
        if replacement.is_in(text):
            yield str(replacement)


def with_replacements(text: str) -> str:
    """Return a text with what serves without Docker in place of each option that it names."""
    return " ".join([text, *replacements_in(text)])
