"""Claims S9: programs that a training job calls, and rdma-core's user space as NCCL opens it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from images.planning import system_packages
from images.validation.claims.context import ClaimContext
from validate.claims import Claim, Tier

if TYPE_CHECKING:
    from validate.checks.static.system import OpenedLibrary, ToolsExpect, VerbsExpect

_VERSION_ARGUMENTS: Mapping[str, list[str]] = {"ssh": ["-V"]}

_NCCL_VERBS = (
    "ibv_get_device_list",
    "ibv_free_device_list",
    "ibv_get_device_name",
    "ibv_open_device",
    "ibv_close_device",
    "ibv_get_async_event",
    "ibv_ack_async_event",
    "ibv_query_device",
    "ibv_query_port",
    "ibv_query_gid",
    "ibv_query_qp",
    "ibv_alloc_pd",
    "ibv_dealloc_pd",
    "ibv_reg_mr",
    "ibv_dereg_mr",
    "ibv_create_cq",
    "ibv_destroy_cq",
    "ibv_create_qp",
    "ibv_modify_qp",
    "ibv_destroy_qp",
    "ibv_fork_init",
    "ibv_event_type_str",
)
"""Functions without which NCCL closes libibverbs again; asked for as IBVERBS_1.1 (NCCL, src/misc/ibvsymbols.cc)."""

_OPENED: Mapping[str, OpenedLibrary] = {
    "libibverbs.so.1": {
        "names": ["libibverbs.so", "libibverbs.so.1"],
        "symbols": {
            **dict.fromkeys(_NCCL_VERBS, "IBVERBS_1.1"),
            # NCCL does without these two, but not at full speed: relaxed ordering, and GPUDirect through dma-buf.
            "ibv_reg_mr_iova2": "IBVERBS_1.8",
            "ibv_reg_dmabuf_mr": "IBVERBS_1.12",
        },
        "by_nccl": True,
    },
    "libmlx5.so.1": {  # since NCCL 2.27 (src/misc/mlx5dvsymbols.cc)
        "names": ["libmlx5.so", "libmlx5.so.1"],
        "symbols": {"mlx5dv_is_supported": "MLX5_1.8"},
        "by_nccl": True,
    },
    "librdmacm.so.1": {"names": ["librdmacm.so.1"], "symbols": {}, "by_nccl": False},  # UCX, NVSHMEM, cuFile
}
_PROVIDERS = ("mlx5", "efa", "irdma", "bnxt_re")
"""InfiniBand and RoCE cards of NVIDIA, AWS, Intel and Broadcom."""


def system_claims(context: ClaimContext) -> Iterator[Claim]:
    """S9. A custom base that has no apt-get may go without: there, the claims are not required."""
    tools: ToolsExpect = {"programs": {name: _VERSION_ARGUMENTS.get(name, ["--version"]) for name in _programs()}}
    verbs: VerbsExpect = {
        "libraries": {name: _OPENED[name] for name in system_packages.RDMA},
        "providers": list(_PROVIDERS),
    }
    rows: tuple[tuple[str, str, ToolsExpect | VerbsExpect], ...] = (
        ("tools", f"{', '.join(_programs())} are there and run", tools),
        ("verbs", "NCCL's own loader finds rdma-core, with every function and version that it asks for", verbs),
    )
    for subject, statement, expect in rows:
        yield Claim(
            id="S9",
            subject=subject,
            tier=Tier.STATIC,
            probe="static.system",
            statement=statement,
            required=not context.custom_base,
            expect=expect,
        )


def _programs() -> tuple[str, ...]:
    return tuple(system_packages.PROGRAMS)
