"""The Docker SDK behind one class. Everything the SDK keeps private is used here and nowhere else.

The SDK's session reaches an engine by a local socket, TCP with TLS and SSH alike. Its own methods for builds, pushes
and registries hide what we need: BuildKit's stream, the headers with credentials, the words of a registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import docker
import docker.errors
import requests
from docker import auth
from docker.tls import TLSConfig

from images.engine.archive import Files, pack
from images.engine.docker_types import Message

UNREACHABLE = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)
"""What is raised when an engine does not answer."""
_TIMEOUT = 120.0  # seconds of silence on a request that has nothing long to do
_TAR = {"Content-Type": "application/x-tar"}


class DockerApi:
    """A connection to one engine. `sdk` has the SDK's public methods. Thread safe."""

    def __init__(self, base_url: str, tls: TLSConfig | bool = False) -> None:
        """Connect. Raises the SDK's and OS errors (`UNREACHABLE`) when the engine doesn't answer."""
        self.sdk: Any = docker.APIClient(  # Any: the published types of the SDK lack most of its parameters
            base_url=base_url, tls=tls, version="auto", timeout=cast(int, _TIMEOUT), max_pool_size=64
        )

    @contextmanager
    def build(self, context: Files, parameters: Mapping[str, str]) -> Iterator[Iterator[Message]]:
        """The messages of a build by `POST /build`. A step may be silent for as long as it likes."""
        headers = {**_TAR, **self._all_credentials()}
        with self._stream(self.sdk._url("/build"), parameters, headers, context) as messages:
            yield messages

    def cancel_build(self, build_id: str) -> None:
        """Cancel the build that was started with this `buildid`. An engine that doesn't answer is no error."""
        try:
            self.sdk._post(self.sdk._url("/build/cancel"), params={"id": build_id}, timeout=10)
        except UNREACHABLE:
            return  # closing the connection, which has happened, cancels it as well

    @contextmanager
    def load(self, files: Files) -> Iterator[Iterator[Message]]:
        """The messages while images are loaded from what `docker save` writes."""
        with self._stream(self.sdk._url("/images/load"), {"quiet": "1"}, _TAR, files) as messages:
            yield messages

    @contextmanager
    def push(self, ref: str, repository: str, tag: str) -> Iterator[Iterator[Message]]:
        """The messages of a push. A registry may be silent while it checks a layer of gigabytes."""
        headers = self._credentials(ref) or {"X-Registry-Auth": auth.encode_header({}).decode()}
        with self._stream(self.sdk._url("/images/{0}/push", repository), {"tag": tag}, headers) as messages:
            yield messages

    def registry_digest(self, ref: str, timeout: float) -> str:
        """The digest that a registry has for a reference, asked through the engine, within `timeout` seconds."""
        answer = self.sdk._get(
            self.sdk._url("/distribution/{0}/json", ref), headers=self._credentials(ref), timeout=timeout
        )
        self.sdk._raise_for_status(answer)
        return str(answer.json()["Descriptor"]["digest"])

    def close(self) -> None:
        self.sdk.close()

    @contextmanager
    def _stream(
        self, url: str, parameters: Mapping[str, str], headers: Mapping[str, str], files: Files | None = None
    ) -> Iterator[Iterator[Message]]:
        response = self.sdk._post(
            url,
            params=dict(parameters),
            headers=dict(headers),
            data=None if files is None else pack(files),
            stream=True,
            timeout=None,
        )
        try:
            self.sdk._raise_for_status(response)
            yield self.sdk._stream_helper(response, decode=True)
        finally:
            response.close()

    def _all_credentials(self) -> dict[str, str]:
        """What `docker login` stored for all registries, in the header that a build expects."""
        known = self.sdk._auth_configs.get_all_credentials()
        return {"X-Registry-Config": auth.encode_header(known).decode()} if known else {}

    def _credentials(self, ref: str) -> dict[str, str]:
        """What `docker login` stored for the registry of a reference."""
        registry, _ = auth.resolve_repository_name(ref.split("@")[0])
        header = auth.get_config_header(self.sdk, registry)
        return {"X-Registry-Auth": header.decode()} if header else {}
