"""shared-memory: /dev/shm must hold the batches that data loader workers hand to the trainer.

Docker gives a container 64 MiB unless asked for more. A worker that finds no room dies of SIGBUS.
NCCL needs the room, too, where GPUs cannot reach each other.
"""

import errno
import importlib
import math
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from validate.harness.forked import measure_claimed_subjects
from validate.judging import PROVES_NOTHING, Finding, failed, is_between, passed
from validate.next_steps import REPORT

FOLDER = Path("/dev/shm")
_BATCHES = 4
_WORKERS = 2
_BATCH_BYTES = 96 << 20
"""More than Docker's 64 MiB."""
LEAST_BYTES = 1 << 30
"""Docker's 64 MiB do not hold one prefetched batch of each worker."""


class SharedMemoryEvidence(TypedDict):
    """The room in /dev/shm, and what became of batches that workers handed over. Sizes in bytes."""

    size: int
    free: int
    refuses_more: bool  # the control: whether it refuses a file that is larger than its room
    batch: int  # size of a batch
    handed_over: int  # number of batches that arrived
    right: bool  # whether all of them arrived as they were made, in shared memory


def measure_shared_memory() -> SharedMemoryEvidence:
    """Measure the room in /dev/shm and let two data loader workers hand over batches through it.

    With too little room no worker is started: it would die of SIGBUS, which names no cause. Then no
    batch was handed over. `size`, `free` and `batch` of the result are bytes; `refuses_more` is
    whether a file that is larger than the free room was refused; `right` is whether all batches
    arrived as they were made.
    """
    filesystem = os.statvfs(FOLDER)
    size = filesystem.f_blocks * filesystem.f_frsize
    free = filesystem.f_bavail * filesystem.f_frsize
    # The control: a file that does not fit must be refused.
    refuses_more = refuses_file(free + (64 << 20))

    transfer = Transfer(batches=0, is_right=False)
    # Require twice the room that the workers need: each makes one batch ahead.
    if free >= _BATCH_BYTES * _WORKERS * 2:
        transfer = transfer_batches()
    return {
        "size": size,
        "free": free,
        "refuses_more": refuses_more,
        "batch": _BATCH_BYTES,
        "handed_over": transfer.batches,
        "right": transfer.is_right,
    }


def refuses_file(size: int) -> bool:
    """Return whether /dev/shm has no room for a file of this size in bytes."""
    with tempfile.TemporaryFile(dir=FOLDER) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            return error.errno == errno.ENOSPC
    return False


class Transfer(NamedTuple):
    """How many batches arrived, and whether all are as they were made and in shared memory."""

    batches: int
    is_right: bool


def transfer_batches() -> Transfer:
    """Load batches that a DataLoader's workers make, and compare each with one made here.

    Each must also lie in shared memory, by which the workers hand it over. Returns how many
    arrived, and whether all of them were right.
    """
    data = importlib.import_module("torch.utils.data")
    loader = data.DataLoader(
        range(_BATCHES),
        # Each number of the range becomes a batch of its own, made by this function in a worker.
        batch_size=None,
        collate_fn=make_batch,
        num_workers=_WORKERS,
        prefetch_factor=1,
    )
    batches = 0
    is_right = True
    for number, batch in enumerate(loader):
        batches += 1
        is_equal = bool((batch == make_batch(number)).all())
        if not is_equal or not batch.is_shared():
            is_right = False
    return Transfer(batches, is_right)


def make_batch(number: int) -> Any:
    """Return _BATCH_BYTES of whole numbers, 8 bytes each, which differ from batch to batch."""
    return importlib.import_module("torch").arange(_BATCH_BYTES // 8) + number


def judge(_subject: str, _expect: object, evidence: SharedMemoryEvidence) -> Finding:
    """Pass if /dev/shm is large enough, and batches of data loader workers arrive through it.

    Also fails if a file larger than /dev/shm could be written there: then its size is not enforced,
    and proves nothing.
    """
    size = evidence["size"]
    if not is_between(size, LEAST_BYTES, math.inf):
        least = format_mebibytes(LEAST_BYTES)
        return failed(
            f"/dev/shm is too small: {format_mebibytes(size)}, {least} are needed",
            "start containers with `--shm-size=8g` (or `--ipc=host`), and validate again",
        )
    if evidence["refuses_more"] is not True:
        return failed(
            f"{PROVES_NOTHING}/dev/shm has {format_mebibytes(size)}, and took a file that is "
            "larger",
            "look at `df /dev/shm` in a container of the image, and mount at /dev/shm a tmpfs with "
            "a limit (`--shm-size=8g`); if larger files still fit, validate on another machine",
        )
    # If no batch arrived, none arrived wrong.
    if evidence["right"] is not True or not evidence["handed_over"]:
        return failed(
            "batches that a DataLoader's workers hand over through /dev/shm do not arrive as the "
            "workers made them"
        )

    handed_over = f"{evidence['handed_over']} batches of {format_mebibytes(evidence['batch'])}"
    return passed(f"{format_mebibytes(size)}; workers handed over {handed_over}")


def format_mebibytes(size: float) -> str:
    """Return a number of bytes as `64 MiB`."""
    return f"{size / 2**20:.0f} MiB"


measure = partial(measure_claimed_subjects, measures={"dev-shm": measure_shared_memory})
CLAIMS = {"shared-memory": judge}
NEXT_STEPS = {
    "shared-memory": f"validate again on another machine; if it fails there in the same way, "
    f"{REPORT}"
}
