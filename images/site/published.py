"""The index.json of a site that somebody wrote: a file, or an address."""

from __future__ import annotations

from pathlib import Path

import requests
from pydantic import ValidationError

from images.errors import Problem, UserError, command
from images.site.index import Index

_NAME = "index.json"
_SECONDS = 30


def read(place: str) -> Index:
    """Read FOLDER, FILE or URL; of a folder or an address that ends with `/`, its index.json. Raises UserError."""
    try:
        return Index.model_validate_json(_fetched(place) if "://" in place else _of_disk(Path(place)))
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        cause = f"is no index.json of this version: {f'{at}: ' if at else ''}{first['msg']}"
        raise UserError(Problem(where=place, cause=cause, then=f"name one that `{command('site')}` wrote")) from None


def _of_disk(path: Path) -> bytes:
    file = path / _NAME if path.is_dir() else path
    try:
        return file.read_bytes()
    except OSError as error:
        cause = f"can't be read: {error.strerror}"
        raise UserError(Problem(where=str(file), cause=cause, then="name an index.json, or its address")) from None


def _fetched(url: str) -> bytes:
    address = f"{url}{_NAME}" if url.endswith("/") else url
    then = "open it in a browser: an index.json must be there"
    try:
        answer = requests.get(address, timeout=_SECONDS)
    except (requests.RequestException, UnicodeError) as error:
        cause = f"can't be fetched: {type(error).__name__}"
        raise UserError(Problem(where=address, cause=cause, then=then)) from None
    if not answer.ok:
        raise UserError(Problem(where=address, cause=f"answers {answer.status_code}", then=then))
    return answer.content
