"""Serve package indexes on loopback with tiny real wheels: the default one, and PyTorch's.

PyTorch's has a folder for each CUDA. Its pages (PEP 503) have absolute paths as links, with `%2B`
for the `+` of local versions, and a sha256 as fragment. Beside each wheel lies its METADATA as
`.metadata`, whose own sha256 stands in the link (PEP 658).
"""

import hashlib
import html
import io
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from tests.support.http_server import Reply, Server, serving
from tests.support.known_python import known_python, uv_asks_once
from tests.support.wheels import record_hash

__all__ = ["Indexes", "indexes", "known_python", "uv_asks_once"]

DEFAULT = "/simple"
_WHEEL = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_wheel(name: str, version: str, *needs: str, library: bytes = b"") -> bytes:
    """Return a wheel with these requirements (`needs`), and a library if there is one."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        f"{info}/METADATA": metadata(name, version, *needs).encode(),
        f"{info}/WHEEL": _WHEEL,
        f"{info}/LICENSE": b"free",
    }
    if library:
        files[f"{name}/lib.so"] = library
    if name.startswith("nvidia-"):
        files[f"nvidia/{name}/bin/{name}"] = b""
    rows = [f"{path},{record_hash(content)},{len(content)}" for path, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path), content)
    return wheel.getvalue()


def metadata(name: str, version: str, *needs: str) -> str:
    """Return the METADATA of a wheel."""
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        "Provides-Extra: http",
    ]
    return "\n".join([*lines, *(f"Requires-Dist: {text}" for text in needs), ""])


@dataclass
class Indexes:
    """Indexes that a server answers for.

    The pages and files of the default index lie below /simple, those of PyTorch's below /whl/cuNNN.
    """

    server: Server
    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, dict[str, str]] = field(default_factory=dict)
    """Page -> file name -> link."""

    def __post_init__(self) -> None:
        self.server.answer = self._answer

    @property
    def default(self) -> str:
        return f"http://{self.server.host}/simple"

    @property
    def torch(self) -> str:
        """Return the address of PyTorch's index as facts.yaml has it, with `{variant}`."""
        return f"http://{self.server.host}/whl/{{variant}}"

    def add(
        self,
        folder: str,
        name: str,
        version: str,
        *needs: str,
        algorithm: str = "sha256",
        library: bytes = b"",
    ) -> str:
        """Add a wheel to a folder, `/simple` or `/whl/cu128`, and return its sha256.

        `algorithm`: of the hash in its link; empty: the link has none.
        """
        wheel = make_wheel(name, version, *needs, library=library)
        own_metadata = metadata(name, version, *needs).encode()
        file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        path = f"{folder}/{file}"
        self.files[path] = wheel
        self.files[f"{path}.metadata"] = own_metadata

        fragment, attributes = "", ""
        if algorithm:
            fragment = f"#{algorithm}={hashlib.new(algorithm, wheel).hexdigest()}"
        if algorithm == "sha256":
            metadata_hash = f'"sha256={hashlib.sha256(own_metadata).hexdigest()}"'
            attributes = (
                f" data-dist-info-metadata={metadata_hash} data-core-metadata={metadata_hash}"
            )
        link = f'<a href="{quote(path)}{fragment}"{attributes}>{file}</a>'
        self.links.setdefault(f"{folder}/{name}/", {})[file] = link
        return hashlib.sha256(wheel).hexdigest()

    def add_source(self, folder: str, name: str, version: str) -> str:
        """Add a source archive that needs no build to be read, and return its sha256."""
        pyproject = f'[project]\nname = "{name}"\nversion = "{version}"\n'
        texts = {"PKG-INFO": metadata(name, version), "pyproject.toml": pyproject}
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            for path, text in texts.items():
                member = tarfile.TarInfo(f"{name}-{version}/{path}")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
        content = archive.getvalue()
        digest = hashlib.sha256(content).hexdigest()
        file = f"{name}-{version}.tar.gz"
        self.files[f"{folder}/{file}"] = content
        link = f'<a href="{folder}/{file}#sha256={digest}">{file}</a>'
        self.links.setdefault(f"{folder}/{name}/", {})[file] = link
        return digest

    def asked(self, suffix: str) -> list[str]:
        """Return the paths of the requests so far that end with `suffix`."""
        return [unquote(path) for _, path, _ in self.server.seen if path.endswith(suffix)]

    def _answer(
        self, _method: str, path: str, headers: dict[str, str], _body: bytes
    ) -> Reply | None:
        """Return the reply to a request for a page, a file, or a range of a file's bytes."""
        plain = unquote(path)
        if plain in self.links:
            title = html.escape(f"Links for {plain}")
            links = "<br/>".join(self.links[plain].values())
            page = f"<!DOCTYPE html><html><body><h1>{title}</h1>{links}</body></html>"
            return 200, {"Content-Type": "text/html"}, page.encode()
        if plain not in self.files:
            return 404, {}, b""

        content = self.files[plain]
        if "Range" not in headers:
            return 200, {"Content-Type": "application/octet-stream"}, content
        # `bytes=-N` asks for the last N bytes, `bytes=M-` for those from M on.
        first, _, last = headers["Range"].removeprefix("bytes=").partition("-")
        begin = int(first) if first else max(0, len(content) - int(last))
        part = content[begin : int(last) + 1 if first and last else None]
        content_range = f"bytes {begin}-{begin + len(part) - 1}/{len(content)}"
        return 206, {"Content-Range": content_range}, part


_OTHER_INDEXES = (
    *("UV_INDEX_URL", "PIP_INDEX_URL"),
    *("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"),
)
"""Variables by which this machine may send uv elsewhere."""


@pytest.fixture
def indexes(
    uv_asks_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Indexes]:
    """Yield indexes that are the only ones that uv asks."""
    for name in _OTHER_INDEXES:
        monkeypatch.delenv(name, raising=False)
    with serving() as server:
        own_indexes = Indexes(server)
        monkeypatch.setenv("UV_DEFAULT_INDEX", own_indexes.default)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("UV_HTTP_RETRIES", "0")
        yield own_indexes
