"""Apptainer, where a node has neither a Docker Engine nor Podman: containers of a registry's images, by digest."""

from __future__ import annotations

import os
import shutil

from images.apptainer.runtime import PROGRAM
from images.engine import NoEngine, connect
from images.engine.runtime import Runtime

__all__ = ["PROGRAM", "open_runtime"]


def open_runtime(url: str | None) -> Runtime:
    """What runs the containers of a validation run: what `url` names (`apptainer`, or an engine's address), else an
    engine that answers, else Apptainer where it is installed. Raises UserError, NoEngine."""
    if url != PROGRAM:
        try:
            return connect(url, builds=False)
        except NoEngine:
            if not shutil.which(PROGRAM) or os.geteuid() == 0:
                raise
    from images.apptainer.runtime import Apptainer

    return Apptainer()
