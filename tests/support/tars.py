"""Small tars, as layers are."""

import io
import tarfile
from collections.abc import Mapping
from typing import Any

LONG = "d" * 90 + "/" + "n" * 120
"""A path that no header of 1988 holds."""


def tar(*members: tuple[str, Mapping[str, Any]], form: int = tarfile.PAX_FORMAT) -> bytes:
    """Members by name, with tarfile's attributes and `content`."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        for name, values in members:
            member = tarfile.TarInfo(name)
            content = values.get("content", b"")
            member.size = len(content)
            for key, value in values.items():
                if key != "content":
                    setattr(member, key, value)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()
