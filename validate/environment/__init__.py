"""What is installed beside the suite, and what its processes start with: packages, owners, drivers, variables."""

from pathlib import Path

_RENAMED_FROM = (2, 10)
"""The first whose CUDA allocator reads the new name (c10/cuda/CUDAAllocatorConfig.h of the wheels; 2.9.1 reads the old
one alone)."""


def allocator_variable(torch: tuple[int, int]) -> str:
    """The variable that a torch release (major, minor) reads its CUDA allocator's settings from."""
    return "PYTORCH_ALLOC_CONF" if torch >= _RENAMED_FROM else "PYTORCH_CUDA_ALLOC_CONF"


def container_memory() -> int:
    """Bytes that this container may use; 0 if nothing tells."""
    limits = [
        _number(file)
        for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    ]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    except (OSError, ValueError):
        pass
    return min((limit for limit in limits if limit), default=0)


def _number(file: str) -> int:
    """The number in a file; 0 where there is none (`max`)."""
    try:
        return int(Path(file).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
