"""List every path of an image, in a container of it."""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from validate.environment import user_environment

_NOT_OF_THE_IMAGE = ("/proc", "/sys", "/dev", "/judge")
"""Folders of the kernel, and the one in which the suite is mounted."""
_BYTECODE = re.compile(r"(?P<folder>.*)/__pycache__/(?P<name>[^/]+)\.[a-z]+-\d+(\.opt-\w+)?\.pyc")


class ImagePaths(NamedTuple):
    """What is in an image."""

    facts: Mapping[str, os.stat_result]
    """Path -> what lstat says of it. Folders, too."""
    unreadable: list[str]
    """Folders of the image that can't be listed."""


@cache
def read_image_paths() -> ImagePaths:
    """Return every path of the image. They are listed once a process."""
    unreadable: list[str] = []
    # Where a user started the container, what is mounted there may be the user's own data.
    user = user_environment.recorded()
    entries = walk("/", unreadable, volumes=not user.has_own_mounts)
    facts = dict(entries)
    return ImagePaths(facts, unreadable)


def walk(
    top: str, unreadable: list[str], *, volumes: bool = True
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and lstat of every file and folder below a folder of an image.

    top: the folder to begin with.
    unreadable: folders that can't be listed are appended to it.
    volumes: whether folders that the engine has mounted belong to the image, as its volumes do.
        Mounted files, such as /etc/hosts, never do. /proc and the like are left out, too.
    """
    # A mounted file or folder is on another device (`st_dev`) than the folder around it.
    root_device = os.lstat(top).st_dev
    # Folders to list, each with its device.
    folders = [(top, root_device)]
    while folders:
        folder, folder_device = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            # A folder on another file system may be unreadable without a fault of the image.
            if folder_device == root_device:
                unreadable.append(folder)
            continue

        for entry in entries:
            path = f"/{entry.name}" if folder == "/" else f"{folder}/{entry.name}"
            if path in _NOT_OF_THE_IMAGE:
                continue
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError:
                # This file was removed while its folder was read.
                continue
            # A mounted file is neither on the image's device nor on its folder's. (Files in a
            # volume are on the device of their folder.)
            is_folder = stat.S_ISDIR(facts.st_mode)
            is_mounted_file = not is_folder and facts.st_dev not in (root_device, folder_device)
            is_mounted_folder = is_folder and facts.st_dev != root_device
            if is_mounted_file or (is_mounted_folder and not volumes):
                continue
            yield path, facts
            if is_folder:
                folders.append((path, facts.st_dev))


def source_of_bytecode(path: str) -> str:
    """Return the path of the source that a `.pyc` file is made from; empty for other files."""
    match = _BYTECODE.fullmatch(path)
    return f"{match['folder']}/{match['name']}.py" if match else ""


def with_folders_above(paths: Iterable[str]) -> set[str]:
    """Return these paths and every folder above one of them, except the root folder."""
    all_paths = set(paths)
    for path in list(all_paths):
        folder = path.rpartition("/")[0]
        while folder and folder not in all_paths:
            all_paths.add(folder)
            folder = folder.rpartition("/")[0]
    return all_paths


def is_plain_file(facts: os.stat_result) -> bool:
    """Return whether this is a regular file: no folder, link, device, pipe or socket."""
    return stat.S_ISREG(facts.st_mode)


def is_link(facts: os.stat_result) -> bool:
    """Return whether this is a symbolic link."""
    return stat.S_ISLNK(facts.st_mode)
