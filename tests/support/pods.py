"""Runs a rendered Job's pod with an engine of Docker's, as far as a kubelet would: no cluster is needed for that.

Init containers first, then the others; ConfigMaps as read-only folders, `emptyDir` as a folder that anybody writes.
The engine has the image already, by the digest that the manifest names.
"""

import base64
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker

Manifest = Mapping[str, Any]
SERVICE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_PORT": "tcp://10.0.0.1:443"}
"""Among what a kubelet sets in every container."""


def run(job: Manifest, manifests: Sequence[Manifest], url: str, folder: Path) -> str:
    """The logs of a Job's pod, as `kubectl logs --all-containers` prints them. `folder`: seen by the engine."""
    maps = {one["metadata"]["name"]: one["binaryData"] for one in manifests if one["kind"] == "ConfigMap"}
    pod, digest = job["spec"]["template"]["spec"], job["metadata"]["annotations"]["dev.truetag/digest"]
    folders = {one["name"]: _folder(one, maps, folder) for one in pod["volumes"]}
    client = docker.DockerClient(base_url=url, timeout=600)
    try:
        containers = [*pod["initContainers"], *pod["containers"]]
        return "".join(_run(client, one, digest, folders) for one in containers)
    finally:
        client.close()
        for path in folders.values():
            shutil.rmtree(path)


def _folder(volume: Manifest, maps: Mapping[str, Mapping[str, str]], folder: Path) -> Path:
    own = folder / str(volume["name"])
    own.mkdir(parents=True)
    for source in volume.get("projected", {}).get("sources", ()):
        for name, content in maps[source["configMap"]["name"]].items():
            (own / name).write_bytes(base64.b64decode(content))
    own.chmod(0o755 if "projected" in volume else 0o777)
    return own


def _run(client: docker.DockerClient, container: Manifest, digest: str, folders: Mapping[str, Path]) -> str:
    asked = container["securityContext"]
    user = ":".join(str(asked[key]) for key in ("runAsUser", "runAsGroup") if key in asked)
    found = client.containers.create(
        digest,
        container["command"],
        entrypoint=[],
        hostname="truetag-pod-x1y2z",
        user=user or None,
        network_mode="none",
        read_only=asked["readOnlyRootFilesystem"],
        security_opt=["no-new-privileges"],
        environment={**SERVICE, **{one["name"]: one["value"] for one in container.get("env", ())}},
        volumes=dict(_mounts(container, folders)),
        mem_limit=container["resources"]["limits"]["memory"].replace("Gi", "g").replace("Mi", "m"),
    )
    try:
        found.start()
        found.wait()
        return str(found.logs(stderr=True).decode())
    finally:
        found.remove(force=True, v=True)


def _mounts(container: Manifest, folders: Mapping[str, Path]) -> Iterator[tuple[str, dict[str, str]]]:
    for one in container["volumeMounts"]:
        yield str(folders[one["name"]]), {"bind": one["mountPath"], "mode": "ro" if one.get("readOnly") else "rw"}
