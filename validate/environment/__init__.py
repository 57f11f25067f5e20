"""Read what an image has installed, and what its processes may use: variables, memory, drivers."""

from pathlib import Path

_RENAMED_FROM = (2, 10)
"""The first torch release whose CUDA allocator reads the new name. It is in
c10/cuda/CUDAAllocatorConfig.h of the wheels; 2.9.1 reads only the old one."""


def allocator_variable(torch: tuple[int, int]) -> str:
    """Return the name of the variable that configures the CUDA allocator of a torch release.

    torch: (major, minor).
    """
    return "PYTORCH_ALLOC_CONF" if torch >= _RENAMED_FROM else "PYTORCH_CUDA_ALLOC_CONF"


def container_memory() -> int:
    """Return how many bytes this container may use; 0 if that is not known.

    This is the lowest of the limits of cgroup v2 and v1 (by which the kernel limits a container)
    and the machine's memory.
    """
    limits = [
        _read_number("/sys/fs/cgroup/memory.max"),
        _read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        _machine_memory(),
    ]
    known_limits = [limit for limit in limits if limit]
    return min(known_limits, default=0)


def _read_number(file: str) -> int:
    """Return the number in a file; 0 if it can't be read or says `max`, for no limit."""
    try:
        return int(Path(file).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _machine_memory() -> int:
    """Return the machine's memory in bytes; 0 if it can't be read."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            # MemTotal:       263843488 kB
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0
