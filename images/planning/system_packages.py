"""What every image has of Debian: Python, compilers, tools of a training job, rdma-core's user space."""

from __future__ import annotations

from collections.abc import Mapping

PYTHON = ("python3", "python3-dev", "python3-venv", "gcc", "g++", "libc6-dev", "ca-certificates")
"""Python, and what Triton and torch.compile call at run time."""

PROGRAMS: Mapping[str, str] = {
    "git": "git",
    "ssh": "openssh-client",
    "curl": "curl",
    "less": "less",
    "ps": "procps",
}
"""Program -> the package that has it."""

RDMA: Mapping[str, str] = {
    "libibverbs.so.1": "libibverbs1",
    "libmlx5.so.1": "ibverbs-providers",
    "librdmacm.so.1": "librdmacm1",
}
"""Library -> its package. NCCL opens the first by name, and goes over sockets without a word where it is not found."""

TOOLS = (*PROGRAMS.values(), *RDMA.values())
