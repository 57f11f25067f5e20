"""Package indexes on loopback with tiny real wheels: the default one, and PyTorch's with a folder for each CUDA.

PyTorch's index has PEP 503 pages whose links are absolute paths with `%2B` for the `+` of local versions, a sha256 as
fragment, and beside each wheel its METADATA as `.metadata`, whose own sha256 stands in the link (PEP 658).
"""

import hashlib
import html
import io
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


def make_wheel(name: str, version: str, *needs: str, library: bytes = b"") -> bytes:
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        f"{info}/METADATA": metadata(name, version, *needs).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/LICENSE": b"free",
        **({f"{name}/lib.so": library} if library else {}),
        **({f"nvidia/{name}/bin/{name}": b""} if name.startswith("nvidia-") else {}),
    }
    rows = [f"{path},{record_hash(content)},{len(content)}" for path, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path), content)
    return made.getvalue()


def metadata(name: str, version: str, *needs: str) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        "Provides-Extra: http",
    ]
    return "\n".join([*lines, *(f"Requires-Dist: {text}" for text in needs), ""])


@dataclass
class Indexes:
    """What a server answers: pages and files of the default index below /simple, of PyTorch's below /whl/cuNNN."""

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
        """As facts.yaml has it, for each variant."""
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
        """A wheel below `/simple` or `/whl/cu128`. Returns its sha256. `algorithm`: of the hash in its link, if any."""
        content, told = (
            make_wheel(name, version, *needs, library=library),
            metadata(name, version, *needs).encode(),
        )
        file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        path = f"{folder}/{file}"
        self.files[path], self.files[f"{path}.metadata"] = content, told
        digest, of_metadata = hashlib.sha256(content).hexdigest(), hashlib.sha256(told).hexdigest()
        beside = f' data-dist-info-metadata="sha256={of_metadata}" data-core-metadata="sha256={of_metadata}"'
        fragment = (
            f"#{algorithm}={hashlib.new(algorithm, content).hexdigest()}" if algorithm else ""
        )
        link = (
            f'<a href="{quote(path)}{fragment}"{beside if algorithm == "sha256" else ""}>{file}</a>'
        )
        self.links.setdefault(f"{folder}/{name}/", {})[file] = link
        return digest

    def asked(self, suffix: str) -> list[str]:
        """Paths of the requests so far that end so."""
        return [unquote(path) for _, path, _ in self.server.seen if path.endswith(suffix)]

    def _answer(
        self, _method: str, path: str, headers: dict[str, str], _body: bytes
    ) -> Reply | None:
        plain = unquote(path)
        if plain in self.links:
            title = html.escape(f"Links for {plain}")
            page = f"<!DOCTYPE html><html><body><h1>{title}</h1>{'<br/>'.join(self.links[plain].values())}</body></html>"
            return 200, {"Content-Type": "text/html"}, page.encode()
        if plain in self.files:
            content = self.files[plain]
            if "Range" in headers:
                first, _, last = headers["Range"].removeprefix("bytes=").partition("-")
                begin = int(first) if first else max(0, len(content) - int(last))
                part = content[begin : int(last) + 1 if first and last else None]
                return (
                    206,
                    {"Content-Range": f"bytes {begin}-{begin + len(part) - 1}/{len(content)}"},
                    part,
                )
            return 200, {"Content-Type": "application/octet-stream"}, content
        return 404, {}, b""


@pytest.fixture
def indexes(
    uv_asks_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Indexes]:
    """Indexes that uv asks, and no others."""
    for name in (
        "UV_INDEX_URL",
        "PIP_INDEX_URL",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    with serving() as server:
        found = Indexes(server)
        monkeypatch.setenv("UV_DEFAULT_INDEX", found.default)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("UV_HTTP_RETRIES", "0")
        yield found
