"""Containers by their labels: made, listed, removed, and swept after a run that was killed."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import docker.errors
import requests
from docker.types import LogConfig, Mount, Ulimit

from images.engine.docker_api import DockerApi
from images.engine.responses import ContainerInfo, asking
from images.engine.specs import ContainerSpec

RUN_LABEL = "dev.truetag.run"
OWNER_LABEL = "dev.truetag.owner"
HOST_NAME = "trial"
"""Name of a container without network, which resolves to the loopback address.

The engine resolves a container's name on a network only. `torchrun --standalone`, and from torch 2.13 on `torchrun` of
one node without `--master-port` (torch/distributed/run.py takes the c10d rendezvous for both), hands that name to its
workers as the master's address, and they wait 300 s for it.
"""


def create(api: DockerApi, spec: ContainerSpec, labels: Mapping[str, str]) -> str:
    """Create a container with a volume for each of the spec's paths; the labels are on both. Returns its ID.

    Raises NoSuchImage, EngineError.
    """
    mounts = [
        *(Mount(target=path, source=None, type="volume", no_copy=True, labels=dict(labels)) for path in spec.volumes),
        *(Mount(target=path, source=None, type="volume", labels=dict(labels)) for path in spec.copied_volumes),
        *(Mount(target=inside, source=path, type="bind", read_only=True) for path, inside in spec.binds.items()),
    ]
    limits = {"mem_limit": spec.memory, "memswap_limit": spec.memory} if spec.memory else {}
    if spec.processes:
        limits["pids_limit"] = spec.processes
    rights: dict[str, list[str]] = {}
    if spec.capabilities is not None:
        rights = {"cap_drop": ["ALL"], "cap_add": [*spec.capabilities], "security_opt": ["no-new-privileges"]}
    requests_of_gpus = {"device_requests": [dict(one) for one in spec.device_requests]} if spec.device_requests else {}
    alone = spec.network == "none"
    host = api.sdk.create_host_config(
        network_mode=spec.network,
        extra_hosts={HOST_NAME: "127.0.0.1"} if alone else None,
        read_only=spec.read_only,
        tmpfs=dict(spec.tmpfs),
        mounts=mounts,
        devices=list(spec.devices),
        shm_size=spec.shm_size,
        ulimits=[Ulimit(name=one, soft=most, hard=most) for one, most in spec.ulimits.items()],
        init=True,  # reaps what the command leaves behind, and passes signals on
        log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": "64m", "max-file": "1"}),
        **requests_of_gpus,
        **limits,
        **rights,
    )
    with asking(spec.name or spec.image, image=spec.image):
        created = api.sdk.create_container(
            spec.image,
            list(spec.cmd),
            entrypoint=[""],
            environment=dict(spec.env),
            user=spec.user,
            labels=dict(labels),
            hostname=HOST_NAME if alone else None,
            host_config=host,
            use_config_proxy=False,
        )
    return str(created["Id"])


def remove(api: DockerApi, container_id: str) -> None:
    """Remove a container with its volumes. One that is gone, or is being removed, is no error."""
    try:
        api.sdk.remove_container(container_id, v=True, force=True)
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        if error.status_code != requests.codes.conflict:  # 409: somebody is removing it already
            raise


def listed(api: DockerApi, label: str) -> tuple[ContainerInfo, ...]:
    """Containers that bear a label, ended ones included."""
    with asking("list of containers"):
        found = api.sdk.containers(all=True, filters={"label": label})
    return tuple(
        ContainerInfo(
            id=one["Id"],
            name=one["Names"][0].lstrip("/") if one["Names"] else one["Id"][:12],
            image=one["Image"],
            state=one["State"],
            labels=one["Labels"] or {},
        )
        for one in found
    )


def volumes(api: DockerApi, label: str) -> dict[str, Mapping[str, str]]:
    """Names of the volumes that bear a label, and all their labels."""
    with asking("list of volumes"):
        found = api.sdk.volumes(filters={"label": label})["Volumes"] or []
    return {volume["Name"]: volume["Labels"] or {} for volume in found}


def sweep(api: DockerApi) -> tuple[str, ...]:
    """Remove containers and volumes that killed runs of this machine left behind. Returns their names."""
    gone = []
    for container in listed(api, RUN_LABEL):
        if _is_orphan(container.labels):
            remove(api, container.id)
            gone.append(container.name)
    for name, labels in volumes(api, RUN_LABEL).items():
        if _is_orphan(labels):
            api.sdk.remove_volume(name, force=True)
            gone.append(name)
    return tuple(gone)


def labels_of(run_id: str) -> dict[str, str]:
    """What a run of this process puts on its containers and volumes."""
    return {RUN_LABEL: run_id, OWNER_LABEL: _owner(os.getpid())}


def _owner(pid: int) -> str:
    """A process, told from a later one with the same number by the time it started (jiffies since boot)."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = ""
    return f"{_machine()}:{pid}:{started}"


def _machine() -> str:
    """This machine since its last start: others that share the engine may have the same name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def _is_orphan(labels: Mapping[str, str]) -> bool:
    """Whether the process that made it ran on this machine and has ended."""
    owner = labels.get(OWNER_LABEL, "")
    host, _, rest = owner.partition(":")
    pid = rest.partition(":")[0]
    return host == _machine() and pid.isdigit() and _owner(int(pid)) != owner
