"""Apptainer, where a node has neither a Docker Engine nor Podman: the containers of a trial, of an image by digest."""

from images.apptainer.runtime import Apptainer, open_runtime

__all__ = ["Apptainer", "open_runtime"]
