"""An executor for callers in many threads: each hands over one job and waits for its end."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from images.engine.failures import Cancelled
from images.fleet.executors.executor import Ended, Executor, Placed


class Pool:
    """Use as a context manager: what goes on is cancelled on any way out."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._waiting: dict[str, Future[Ended]] = {}
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._cancelled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def run(self, job: Placed) -> Ended:
        """Hand a job over, and wait for its end. Raises UserError: it is refused; Cancelled."""
        future: Future[Ended] = Future()
        with self._lock:
            if self._cancelled:
                raise Cancelled
            self._executor.start([job])
            self._waiting[job.key] = future
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, daemon=True)
                self._watcher.start()
        return future.result()

    def cancel(self) -> None:
        """End every job that goes on: whoever waits for it gets Cancelled."""
        with self._lock:
            self._cancelled = True
            self._executor.cancel()
            left, self._waiting = self._waiting, {}
        for future in left.values():
            future.set_exception(Cancelled())

    def _watch(self) -> None:
        """Until nobody waits. What the executor raises is raised by each who waits."""
        while True:
            try:
                for ended in self._executor.ended():
                    with self._lock:
                        future = self._waiting.pop(ended.key, None)
                    if future:
                        future.set_result(ended)
            except Exception as error:  # it belongs to those who wait, whatever it is
                self._fail(error)
            with self._lock:
                if not self._waiting:
                    self._watcher = None
                    return

    def _fail(self, error: Exception) -> None:
        with self._lock:
            left, self._waiting = self._waiting, {}
        for future in left.values():
            future.set_exception(error)
