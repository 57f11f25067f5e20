"""Add pages to docs/ for `nox -s docs`: documents at the root, the reference, and linked files.

Documents link to files as they lie in the repository, so that they can be read there. On the pages,
a link to a document leads to its page, and a link to any other file to a page that shows the file.
"""

from __future__ import annotations

import itertools
import json
import os.path
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from mkdocs.structure.files import File, Files, InclusionLevel

from images import cli
from tools import reference

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
"""Documents at the repository's root -> their pages."""
FOLDERS = {"docs": "README.md", "docs/schema": "docs/reference/json.md"}
"""Folders that documents link to -> what is shown instead. Other folders show their README.md, or a
list of their files."""
SOURCES = "source/"
"""Where pages lie that show a file."""
_LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)(?P<rest>#[^)\s]*)?(?P<after>\))")
_TABLE = re.compile("<table>.*?</table>", re.DOTALL)
_HEADING = re.compile("<th[^>]*>(.*?)</th>", re.DOTALL)
_CELL = re.compile("<td(?P<more>[^>]*)>")
_LANGUAGES = {
    ".py": "python",
    ".sh": "sh",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".j2": "jinja",
}


def on_files(files: Files, config: Any) -> Files:
    """Add pages that docs/ does not hold."""
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    for document, page in DOCUMENTS.items():
        texts[document] = (ROOT / document).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=texts[document]))
    group: Any = typer.main.get_command(cli.app)
    commands = [group.get_command(None, verb) for verb in cli.VERBS]
    schemas = {
        path.name: json.loads(path.read_text())
        for path in sorted((ROOT / "docs" / "schema").glob("*.json"))
    }
    files.append(File.generated(config, "reference/cli.md", content=reference.cli_page(commands)))
    files.append(File.generated(config, "reference/json.md", content=reference.json_page(schemas)))
    for path in sorted(_linked_files(texts)):
        page = File.generated(
            config, _page_of(path), content=_shown(path), inclusion=InclusionLevel.NOT_IN_NAV
        )
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_rest: Any) -> str:
    """Let links lead to pages instead of files."""
    here = posixpath.dirname(page.file.src_uri)

    def lead(found: re.Match[str]) -> str:
        target = _page_of(_in_repository(_document(page.file.src_uri), found["target"]))
        if not target:
            return found[0]
        path = posixpath.relpath(target, here or ".")
        return f"{found['before']}{path}{found['rest'] or ''}{found['after']}"

    return _LINK.sub(lead, markdown)


def on_page_content(html: str, **_rest: Any) -> str:
    """Let each cell of a table name its column: on a phone each is a line (docs/wrap.css)."""
    return _TABLE.sub(lambda found: _label_cells(found[0]), html)


def _label_cells(table: str) -> str:
    """Return a table as HTML whose cells have the heading of their column as `data-label`."""
    headings = [re.sub("<[^>]*>", "", heading) for heading in _HEADING.findall(table)]
    # Rows of Markdown all have as many cells as the table has headings.
    columns = itertools.cycle(headings)

    def with_label(cell: re.Match[str]) -> str:
        return f'<td data-label="{next(columns)}"{cell["more"]}>'

    return _CELL.sub(with_label, table)


def _linked_files(texts: Mapping[str, str]) -> set[str]:
    """Files that documents link to and no page shows yet, and those that these link to."""
    found: set[str] = set()
    waiting = dict(texts)
    while waiting:
        own, text = waiting.popitem()
        linked = {_in_repository(own, link["target"]) for link in _LINK.finditer(text)}
        new = {path for path in linked if _page_of(path).startswith(SOURCES)} - found
        found |= new
        waiting |= {
            path: (ROOT / path).read_text(encoding="utf-8") for path in new if path.endswith(".md")
        }
    return found


def _in_repository(own: str, target: str) -> str:
    """The file or folder that a link of a document means. Empty: the repository has none."""
    if "://" in target:
        return ""
    path = os.path.normpath(posixpath.join(posixpath.dirname(own), target))
    if (ROOT / path).is_dir():
        path = FOLDERS.get(
            path, f"{path}/README.md" if (ROOT / path / "README.md").is_file() else path
        )
    return path if path.startswith("docs/reference/") or (ROOT / path).exists() else ""


def _page_of(path: str) -> str:
    """The page that shows a file of the repository."""
    if path in DOCUMENTS:
        return DOCUMENTS[path]
    return (
        path.removeprefix("docs/") if path.startswith("docs/") else path and f"{SOURCES}{path}.md"
    )


def _document(page: str) -> str:
    """The file of the repository that a page shows: the inverse of `_page_of`."""
    if page.startswith(SOURCES):
        return page.removeprefix(SOURCES).removesuffix(".md")
    return {uri: document for document, uri in DOCUMENTS.items()}.get(page, f"docs/{page}")


def _shown(path: str) -> str:
    if (ROOT / path).is_dir():
        names = sorted(file.name for file in (ROOT / path).iterdir() if file.is_file())
        return "\n".join([f"# {path}/", "", *(f"- `{name}`" for name in names), ""])
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    language = _LANGUAGES.get(posixpath.splitext(path)[1], "text")
    return f"# {path}\n\n````{language}\n{text.rstrip()}\n````\n"
