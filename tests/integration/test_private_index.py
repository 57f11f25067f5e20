"""A private index with TLS and a password: locked, built from, and the password found nowhere."""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from images.building import contexts, run_files
from images.building.contexts import BuildOptions
from images.config import matrix
from images.config.matrix import Sources
from images.context.hosting import host_settings
from images.context.labels import BaseContext
from images.engine import ContainerSpec, Engine
from images.locking import lock_file
from tests.support import commands, sources, wheels
from tests.support.engine_contents import saved
from tests.support.private_index import (
    NAME,
    PASSWORD,
    PASSWORD_VARIABLE,
    USER,
    USER_VARIABLE,
)
from tests.support.pypi_server import pypi_server

pytestmark = pytest.mark.engine

IMAGE, TAG = "cu126-torch25", "truetag-test-private-index"
PRINT = "import acme, acme_train; print(acme.answer, acme_train.answer)"
MATRIX = {
    "defaults": {"base": "bookworm"},
    "bases": {
        "bookworm": {
            "reference": "debian:bookworm-slim",
            "suite": "bookworm",
            "python": "3.11",
            "glibc": "2.36",
            "gcc": "12",
        }
    },
    "layers": {
        "torch": ["torch", "triton", "setuptools"],
        "light": ["pip", "acme", "acme-train"],
    },
    "toolkits": {
        "12.6": {
            "parts": [
                "nvidia-cuda-nvcc-cu12==12.6.85",
                "nvidia-cuda-nvrtc-cu12==12.6.85",
                "nvidia-cuda-runtime-cu12==12.6.77",
            ]
        }
    },
    # PyPI has an `acme` 0.3.0, too, and many newer ones.
    "common": {"pip": "26.3", "acme": "0.3.0", "acme-train": "1.4.0"},
    "stacks": {"2.5": {"torch": "2.5.1", "triton": "3.1.0", "setuptools": "80.9.0"}},
    "images": [{"name": IMAGE}],
}


@dataclass(frozen=True)
class Index:
    """A running private index, a matrix that names it, and the environment of its user."""

    matrix: Path
    environment: Mapping[str, str]
    wheels: Path

    @property
    def folder(self) -> Path:
        """The folder of the matrix, with locks and all that a build leaves."""
        return self.matrix.parent

    def call(self, *arguments: str, **environ: str) -> str:
        """Give a command with the matrix, and return exit status and all that it printed.

        All is in one line. `environ`: variables that are set otherwise.
        """
        options = [*arguments, "--matrix", str(self.matrix)]
        finished = commands.run(*options, **{**self.environment, **environ})
        printed = " ".join((finished.stdout + finished.stderr).split())
        return f"exit status {finished.returncode}: {printed}"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """Yield an index with two packages, and a matrix in whose folder nothing else lies."""
    folder = tmp_path_factory.mktemp("private")
    files, own, bundle = folder / "files", folder / "own", folder / "bundle.pem"
    files.mkdir()
    own.mkdir()
    wheels.module(files, "acme", "0.3.0", files={"acme/__init__.py": b"answer = 'ours'\n"})
    wheels.module(files, "acme_train", "1.4.0", needs="acme>=0.1")
    with pypi_server(files, USER, PASSWORD, bundle) as url:
        own_matrix = own / "matrix.yaml"
        rows = {NAME: {"url": url, "packages": ["acme", "acme-train"]}}
        own_matrix.write_text(yaml.safe_dump({**MATRIX, "indexes": rows}, sort_keys=False))
        environment = {
            USER_VARIABLE: USER,
            PASSWORD_VARIABLE: PASSWORD,
            "SSL_CERT_FILE": str(bundle),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        yield Index(own_matrix, environment, files)


@pytest.fixture(scope="module")
def locked(index: Index) -> Sources:
    """Return the matrix, whose image was locked by the command line."""
    printed = index.call("lock", IMAGE)
    assert printed.startswith("exit status 0"), printed
    return matrix.load(index.matrix)


def forms_of_password() -> list[bytes]:
    """Return the password as a file could hold it: plain, quoted, and as a header sends it."""
    login = f"{USER}:{PASSWORD}"
    return [
        PASSWORD.encode(),
        quote(PASSWORD, safe="").encode(),
        quote(PASSWORD).encode(),
        base64.b64encode(PASSWORD.encode()).rstrip(b"="),
        base64.b64encode(login.encode()).rstrip(b"="),
    ]


def require_no_password(content: bytes, place: str) -> None:
    """Require that no form of the password is in a file."""
    for form in forms_of_password():
        assert form not in content, f"{place} holds {form.decode()}"


# --- what is wrong with an index ------------------------------------------------------------------


def test_a_wrong_password_is_an_error_with_the_next_command(index: Index) -> None:
    printed = index.call("lock", IMAGE, **{PASSWORD_VARIABLE: "wr0ng&secret"})

    assert printed.startswith("exit status 1")
    assert f"refuses the login of {PASSWORD_VARIABLE} for acme (HTTP 403)" in printed
    assert "then `nox -s lock`" in printed
    assert "wr0ng" not in printed


def test_a_certificate_that_is_not_trusted_is_an_error_with_the_next_step(index: Index) -> None:
    system = "/etc/ssl/certs/ca-certificates.crt"

    printed = index.call("lock", IMAGE, SSL_CERT_FILE=system)

    assert printed.startswith("exit status 1")
    assert "shows a certificate that is not trusted" in printed
    assert "in SSL_CERT_FILE" in printed


# --- the image ------------------------------------------------------------------------------------


def test_the_lock_has_our_wheels_and_not_those_of_pypi(index: Index, locked: Sources) -> None:
    image = sources.image(IMAGE, locked)
    lock = lock_file.read(image, locked.workspace.locks)

    files = {package.name: package.wheel for package in lock.packages() if package.wheel}
    assert files == {
        "acme": "acme-0.3.0-py3-none-any.whl",
        "acme-train": "acme_train-1.4.0-py3-none-any.whl",
    }
    assert "josepy" not in lock.versions(lock.inputs.layers), "required by the acme of PyPI"


def test_the_packages_are_in_the_image_and_the_password_is_nowhere(
    engine: Engine,
    base: BaseContext,
    index: Index,
    locked: Sources,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in index.environment.items():
        monkeypatch.setenv(name, value)
    image = sources.image(IMAGE, locked)
    whole_lock = lock_file.read(image, locked.workspace.locks)
    # All but torch's layer, which takes minutes.
    lock = replace(whole_lock, files={**whole_lock.files, "torch.txt": b""})
    host = host_settings()
    options = BuildOptions(sources=locked, host=host, out=index.folder / "out")

    prepared = contexts.prepare(image, lock, base, options)
    run_files.write_context(prepared.files, index.folder / "out" / IMAGE / "context")
    try:
        engine.build(prepared.files, TAG, network=host.network(local=True))
        spec = ContainerSpec(TAG, ["/opt/venv/bin/python", "-c", PRINT])
        with engine.container(spec) as container:
            output = container.run(timeout=600)
        assert output.stdout.strip() == "ours 42", output.stderr

        # The layers, the history and the settings of the image.
        members = set()
        for layer, member, content in saved(engine, TAG):
            members.add(member.name)
            require_no_password(content, f"{member.name} in {layer}")
        require_no_password(json.dumps(engine.sdk.inspect_image(TAG)).encode(), "the configuration")
        require_no_password(json.dumps(engine.sdk.history(TAG)).encode(), "the history")
        assert any("acme_train" in name for name in members)
    finally:
        engine.remove(TAG, force=True)

    # Matrix, locks, build context and the cache of this machine.
    places = [index.folder, Path(index.environment["XDG_CACHE_HOME"])]
    for place in places:
        for path in place.rglob("*"):
            if path.is_file():
                require_no_password(path.read_bytes(), str(path))
