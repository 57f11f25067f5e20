"""What GPUs a host has, and how a container gets them: decided from facts, without any GPU."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from images.engine import gpus, host_gpus
from images.engine.gpus import Attachment
from images.engine.host_gpus import HostState
from images.errors import UserError
from images.hardware import inventory
from images.hardware.inventory import Gpu, GpuMode, Inventory, Link

NODES = ("/dev/nvidia0", "/dev/nvidiactl")
H100 = Inventory(
    driver="580.159.04",
    gpus=(Gpu(name="NVIDIA H100", capability=(9, 0), memory=80),),
    source="NVML",
)
TWO = replace(H100, gpus=H100.gpus * 2, links=((0, 1, Link.NVLINK),))
FOLDER_HOST = HostState(local=True, inventory=H100, folder="/usr/local/nvidia", nodes=NODES)


def test_auto_takes_nvidia_then_the_drivers_folder() -> None:
    everything = replace(FOLDER_HOST, runtime=True)
    assert host_gpus.choose(GpuMode.AUTO, everything).mode is GpuMode.NVIDIA
    chosen = host_gpus.choose(GpuMode.AUTO, FOLDER_HOST)
    assert chosen.mode is GpuMode.HOST_DRIVER
    assert "not nvidia: the engine has no NVIDIA container runtime" in chosen.reason


def test_auto_without_a_way_attaches_nothing_and_says_why() -> None:
    assert inventory.inventory_from({"driver": "580.1", "gpus": []}) is None
    none = host_gpus.choose(GpuMode.AUTO, HostState(local=True))
    assert not none.attached and none.reason == "no GPU was found on the engine's host"
    chosen = host_gpus.choose(GpuMode.AUTO, HostState(local=True, inventory=H100, nodes=NODES))
    assert not chosen.attached and chosen.inventory is H100
    assert all(mode in chosen.reason for mode in ("nvidia:", "host-driver:"))


@pytest.mark.parametrize(
    ("wanted", "host", "cause"),
    [
        (GpuMode.NVIDIA, FOLDER_HOST, "no NVIDIA container runtime"),
        (GpuMode.HOST_DRIVER, HostState(local=False), "another machine"),
        (GpuMode.HOST_DRIVER, HostState(local=True, folder="/usr/local/nvidia"), "no device node"),
        (
            GpuMode.HOST_DRIVER,
            HostState(local=True, nodes=NODES),
            "no folder holds the whole driver",
        ),
    ],
)
def test_a_mode_that_is_asked_for_and_cannot_be_had_is_an_error(
    wanted: str, host: HostState, cause: str
) -> None:
    with pytest.raises(UserError, match=cause):
        host_gpus.choose(wanted, host)


def test_nvidia_is_the_request_of_gpus_all_and_changes_no_variable() -> None:
    nvidia = host_gpus.choose(GpuMode.NVIDIA, HostState(local=True, runtime=True))
    (request,) = nvidia.device_requests
    assert (request["Count"], request["Capabilities"]) == (-1, [["gpu"]])
    assert nvidia.environment({"LD_LIBRARY_PATH": "/own"}) == {}


def test_host_driver_injects_nodes_and_folder() -> None:
    chosen = host_gpus.choose(GpuMode.HOST_DRIVER, FOLDER_HOST)
    assert chosen.devices == NODES
    assert chosen.binds == {"/usr/local/nvidia": "/usr/local/nvidia"}
    assert chosen.environment({}) == {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}
    assert chosen.environment({"LD_LIBRARY_PATH": "/own"}) == {
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/own"
    }


def test_a_folder_is_the_drivers_by_what_it_holds(tmp_path: Path) -> None:
    assert not host_gpus._libraries(str(tmp_path))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcuda.so.1").touch()
    assert host_gpus._libraries(str(tmp_path))
    chosen = host_gpus.choose(
        GpuMode.HOST_DRIVER, HostState(local=True, folder=str(tmp_path), nodes=NODES)
    )
    assert chosen.library_path == f"{tmp_path}/lib"


@pytest.mark.parametrize(
    ("driver", "minimum", "fits"),
    [
        ("580.159.04", "580", True),
        ("570.86.10", "580", False),
        ("525.60.13", "525", True),
        ("99.1", "450", False),
        ("", "580", True),
        ("unknown", "580", True),
    ],
)
def test_an_old_driver_is_told_before_the_container_starts(
    driver: str, minimum: str, fits: bool
) -> None:
    with nullcontext() if fits else pytest.raises(UserError, match=f"is older than {minimum}"):
        host_gpus.require_driver(replace(H100, driver=driver), minimum)


def test_an_attachment_says_what_and_how() -> None:
    assert str(host_gpus.choose(GpuMode.HOST_DRIVER, FOLDER_HOST)) == (
        "NVIDIA H100, driver 580.159.04, attached by host-driver (asked for)"
    )
    assert str(Attachment(mode=GpuMode.NONE, reason="none was found")) == "no GPU: none was found"


@pytest.mark.parametrize(
    "found",
    [
        Attachment(
            mode=GpuMode.HOST_DRIVER, reason="x", inventory=TWO, injected={"NCCL_NVLS_ENABLE": "0"}
        ),
        replace(gpus.NO_GPU, reason="no driver"),
    ],
)
def test_claims_are_written_again_for_the_machine_that_evidence_names(found: Attachment) -> None:
    host = {
        **(found.inventory.as_json() if found.inventory else {"driver": "", "gpus": []}),
        "attached": found.as_json(),
    }
    assert host_gpus.of_host(json.loads(json.dumps(host))) == found
