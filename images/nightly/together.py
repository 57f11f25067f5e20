"""Several trials of a search at once, in threads: the engine does the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

Result = TypeVar("Result")


def together(works: Sequence[Callable[[], Result]], cancel: Callable[[], None]) -> list[Result]:
    """The results, in order. One that raises lets the others end, whose answers are then known to `--resume`.

    `cancel` is called on an interrupt: it ends what goes on.
    """
    if len(works) == 1:
        return [works[0]()]
    with ThreadPoolExecutor(max_workers=len(works)) as pool:
        try:
            running = [pool.submit(work) for work in works]
            wait(running)
        except BaseException:
            cancel()
            raise
    return [future.result() for future in running]
