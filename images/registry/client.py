"""A client of the OCI distribution protocol: manifests, blobs, tags, referrers. One repository of one registry.

Written here because no kept library does what publishing needs: the `oras` package (0.2.43) neither lists referrers,
nor keeps the fallback tag of registries without them, nor mounts blobs across repositories, and the docker SDK
reaches registries only through an engine. Source of every rule: the OCI distribution specification 1.1.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from docker import auth
from docker.errors import DockerException

from images.errors import Problem, UserError
from images.host.hashing import oci_digest

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"
TITLE = "org.opencontainers.image.title"
"""The annotation from which `oras pull` takes a file's name."""

_ACCEPT = ", ".join([OCI_MANIFEST, DOCKER_MANIFEST, OCI_INDEX, DOCKER_INDEX])
_HOST = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*(?::\d{1,5})?|\[[0-9a-fA-F:]+\](?::\d{1,5})?)/(?P<path>.+)")
_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_DOCKER_HUB = "docker.io"
_SECONDS = (10, 60)  # to connect, and of silence
_LARGEST = 256 * 1024**2
"""Bytes of a blob that is read whole: configurations, SBOMs and evidence are far below."""
_LARGEST_MANIFEST = 4 * 1024**2  # what the specification asks registries to accept at least
_ATTEMPTS = 5
_BACKOFF = 1.0  # seconds before the second attempt; doubled before each further one
_LONGEST_WAIT = 60.0
_BUSY = frozenset({408, 429, 500, 502, 503, 504})

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Repository:
    """`HOST/NAME` of a registry."""

    host: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Repository:
        """Read `ghcr.io/me/images` or `127.0.0.1:5000/staging`. Raises UserError."""
        match = _HOST.fullmatch(text)
        if not match or not _NAME.fullmatch(match["path"]) or not _is_host(match["host"]):
            raise UserError(
                Problem(
                    where=text, cause="is no repository of a registry", then="write HOST[:PORT]/NAME, in lower case"
                )
            )
        return cls(match["host"], match["path"])

    def __str__(self) -> str:
        return f"{self.host}/{self.name}"


@dataclass(frozen=True)
class Reference:
    """`HOST/NAME:TAG` or `HOST/NAME@DIGEST`: `wanted` is the tag or the digest."""

    repository: Repository
    wanted: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Raises UserError. A tag beside a digest is not looked at."""
        head, at, digest = text.partition("@")
        name, colon, tag = head.rpartition(":")
        tagged = bool(colon) and "/" not in tag
        wanted = digest if at else tag if tagged else ""
        if not (_DIGEST if at else _TAG).fullmatch(wanted):
            raise UserError(
                Problem(where=text, cause="names no image", then="write HOST/NAME:TAG or HOST/NAME@sha256:...")
            )
        return cls(Repository.parse(name if tagged else head), wanted)

    def __str__(self) -> str:
        return f"{self.repository}{'@' if _DIGEST.fullmatch(self.wanted) else ':'}{self.wanted}"


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """What points at content. `size` in bytes."""

    media_type: str
    digest: str
    size: int
    artifact_type: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, media_type: str, content: bytes, **more: Any) -> Descriptor:
        return cls(media_type=media_type, digest=oci_digest(content), size=len(content), **more)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Descriptor:
        return cls(
            media_type=str(data["mediaType"]),
            digest=str(data["digest"]),
            size=int(data["size"]),
            artifact_type=str(data.get("artifactType") or ""),
            annotations=dict(data.get("annotations") or {}),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
            **({"artifactType": self.artifact_type} if self.artifact_type else {}),
            **({"annotations": dict(self.annotations)} if self.annotations else {}),
        }


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest as the registry has it: its bytes are its identity."""

    media_type: str
    content: bytes

    @property
    def digest(self) -> str:
        return oci_digest(self.content)

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor.of(self.media_type, self.content)

    @property
    def data(self) -> dict[str, Any]:
        found = json.loads(self.content)
        if not isinstance(found, dict):
            raise ValueError("a manifest is a JSON object")
        return found

    @property
    def config(self) -> Descriptor:
        return Descriptor.from_json(self.data["config"])

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        return tuple(map(Descriptor.from_json, self.data.get("layers", ())))

    @property
    def is_index(self) -> bool:
        return self.media_type in (OCI_INDEX, DOCKER_INDEX)


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of an artifact."""

    name: str
    media_type: str
    content: bytes


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Of one registry. Kept out of every text."""

    user: str = field(repr=False)
    password: str = field(repr=False)
    identity_token: str = field(default="", repr=False)


class RegistryError(UserError):
    """A registry's refusal. `status` is HTTP's, 0 where no answer came."""

    def __init__(self, problem: Problem, status: int = 0) -> None:
        super().__init__(problem, code=1)
        self.status = status


class _Again(Exception):  # noqa: N818  # said as an event
    """Trouble that may pass, and the seconds the registry asked to wait."""

    def __init__(self, problem: Problem, status: int = 0, wait: float = 0.0) -> None:
        super().__init__(str(problem))
        self.problem, self.status, self.wait = problem, status, wait


def require_one_image(manifest: Manifest, where: str) -> None:
    """Raises UserError for what an engine pushed as a list of images."""
    if manifest.is_index:
        then = "use an engine that keeps images itself: without the containerd image store"
        raise UserError(Problem(where=where, cause="the engine pushed a list of images", then=then), code=1)


def docker_credentials(host: str) -> Credentials | None:
    """What `docker login` stored for a registry, credential helpers included. Raises UserError, without secrets."""
    try:
        found: Any = auth.load_config().resolve_authconfig(None if host == _DOCKER_HUB else host)
    except (DockerException, OSError, ValueError):
        raise UserError(
            Problem(where=host, cause="its credentials can't be read", then=f"`docker login {host}`"), code=1
        ) from None
    if not found:
        return None
    token = found.get("IdentityToken") or found.get("identitytoken") or ""
    return Credentials(
        user=found.get("Username") or found.get("username") or "",
        password=found.get("Password") or found.get("password") or "",
        identity_token=token,
    )


class Registry:
    """One repository of a registry. Trouble that may pass is tried again; use as a context manager, or call `close`."""

    def __init__(
        self,
        repository: Repository,
        *,
        credentials: Callable[[str], Credentials | None] = docker_credentials,
        sleep: Callable[[float], object] = time.sleep,
        also_from: Repository | None = None,
    ) -> None:
        """`also_from` is a second repository of the same registry to read from: `mount` needs it. Raises UserError."""
        self.repository = repository
        self._also_from = also_from
        self._credentials = credentials
        self._sleep = sleep
        self._session = requests.Session()
        # requests would read ~/.netrc for any request without an authentication of its own.
        self._session.auth = self._authorize
        self._authorization = ""
        if is_loopback(repository.host):
            self._session.trust_env = False  # as Docker: a proxy can't reach this machine's loopback
        self._base = f"{self._scheme()}://{_api_host(repository.host)}/v2/"

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    # --- manifests and tags -----------------------------------------------------------------------------------------

    def check_access(self) -> None:
        """Whether we may write there, before anything large is sent. Raises UserError."""
        self._cancel_upload(self._again(lambda: self._start_upload("")))

    def find(self, wanted: str) -> Manifest | None:
        """The manifest of a tag or digest; None where there is none. Raises UserError, also for wrong content."""
        answer = self._request("GET", f"manifests/{wanted}", headers={"Accept": _ACCEPT}, missing_ok=True)
        if answer is None:
            return None
        if len(answer.content) > _LARGEST_MANIFEST:
            raise self._broken(wanted, f"its manifest has {len(answer.content)} bytes")
        media_type = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        manifest = Manifest(media_type=media_type, content=answer.content)
        expected = wanted if _DIGEST.fullmatch(wanted) else answer.headers.get("Docker-Content-Digest", "")
        if expected and expected != manifest.digest:
            raise self._broken(wanted, f"the content is {manifest.digest}, not {expected}")
        return manifest

    def get(self, wanted: str) -> Manifest:
        """The manifest of a tag or digest. Raises UserError."""
        if found := self.find(wanted):
            return found
        where = str(Reference(self.repository, wanted))
        raise RegistryError(Problem(where=where, cause="the registry has no such image", then="check the name"), 404)

    def put(self, manifest: Manifest, wanted: str = "") -> requests.Response:
        """Store a manifest under a tag, or (`wanted` empty) by its digest alone. Raises UserError."""
        headers = {"Content-Type": manifest.media_type}
        answer = self._request("PUT", f"manifests/{wanted or manifest.digest}", headers=headers, data=manifest.content)
        if answer is None:
            raise self._broken(wanted or manifest.digest, "the registry does not know the repository")
        return answer

    def delete_tag(self, tag: str) -> bool:
        """Take a tag away, never the manifest. False where the registry has no such operation."""
        try:
            self._request("DELETE", f"manifests/{tag}", missing_ok=True)
        except RegistryError as error:
            if error.status in (400, 405, 501):
                return False
            raise
        return self.find(tag) is None

    def tags(self) -> tuple[str, ...]:
        """Every tag of the repository."""
        pages = self._pages("tags/list?n=1000")
        return tuple(str(tag) for page in pages for tag in page.get("tags") or ())

    # --- blobs ------------------------------------------------------------------------------------------------------

    def blob(self, descriptor: Descriptor) -> bytes:
        """A blob's content, checked. Raises UserError."""
        if descriptor.size > _LARGEST:
            raise self._broken(descriptor.digest, f"it has {descriptor.size} bytes, too many to read whole")
        answer = self._request("GET", f"blobs/{descriptor.digest}")
        content = answer.content if answer is not None else b""
        if oci_digest(content) != descriptor.digest:
            raise self._broken(descriptor.digest, "the content does not fit the digest")
        return content

    def has_blob(self, digest: str) -> bool:
        return self._request("HEAD", f"blobs/{digest}", missing_ok=True) is not None

    def put_blob(self, content: bytes) -> str:
        """Store a blob, once. Returns its digest. Raises UserError."""
        digest = oci_digest(content)
        if not self.has_blob(digest):
            self._again(lambda: self._upload(content, digest))
        return digest

    def mount(self, digest: str, source: Repository) -> bool:
        """Take over a blob from another repository of this registry. False where the registry doesn't grant it."""
        if self.has_blob(digest):
            return True
        location = self._again(lambda: self._start_upload(f"?mount={digest}&from={source.name}"))
        if location:
            self._cancel_upload(location)
        return not location

    def _upload(self, content: bytes, digest: str) -> None:
        location = self._start_upload("")
        joined = f"{location}{'&' if '?' in location else '?'}digest={digest}"
        headers = {"Content-Type": "application/octet-stream"}
        self._once("PUT", joined, headers=headers, data=content)

    def _start_upload(self, query: str) -> str:
        """Where to send a blob; empty when a mount made sending needless."""
        answer = self._once("POST", f"blobs/uploads/{query}", headers={"Content-Length": "0"})
        if answer.status_code == requests.codes.created:
            return ""
        return urljoin(answer.url, answer.headers.get("Location", ""))

    def _cancel_upload(self, location: str) -> None:
        try:
            self._once("DELETE", location)
        except (RegistryError, _Again):
            return  # a courtesy: registries sweep unfinished uploads themselves

    # --- referrers --------------------------------------------------------------------------------------------------

    def attach(
        self,
        subject: Descriptor,
        artifact_type: str,
        files: Sequence[File],
        annotations: Mapping[str, str] | None = None,
    ) -> Descriptor:
        """Store files as an artifact that refers to `subject`. The same content twice is stored once."""
        self.put_blob(EMPTY)
        layers = []
        for file in files:
            self.put_blob(file.content)
            layers.append(Descriptor.of(file.media_type, file.content, annotations={TITLE: file.name}))
        return self.refer(artifact(subject, artifact_type, layers, annotations or {}))

    def refer(self, manifest: Manifest) -> Descriptor:
        """Store a manifest that has a subject, and see to it that `referrers` finds it. Raises UserError."""
        subject = str(manifest.data["subject"]["digest"])
        answer = self.put(manifest)
        entry = referrer(manifest)
        if answer.headers.get("OCI-Subject") != subject:
            self._list_in_fallback(subject, entry)
        return entry

    def referrers(self, subject: str) -> tuple[Descriptor, ...]:
        """What refers to a digest: by the referrers API, else by the fallback tag."""
        if not _DIGEST.fullmatch(subject):
            raise ValueError(f"{subject!r} is no digest")
        try:
            pages = list(self._pages(f"referrers/{subject}"))
        except RegistryError as error:
            if error.status != requests.codes.not_found:
                raise
            return self._fallback(subject)
        return tuple(Descriptor.from_json(entry) for page in pages for entry in page.get("manifests") or ())

    def _fallback(self, subject: str) -> tuple[Descriptor, ...]:
        found = self.find(fallback_tag(subject))
        return tuple(map(Descriptor.from_json, found.data.get("manifests", ()))) if found else ()

    def _list_in_fallback(self, subject: str, entry: Descriptor) -> None:
        """The specification's tag schema. Reading back tells a loss to somebody who wrote between our two steps."""
        for _ in range(_ATTEMPTS):
            listed = self._fallback(subject)
            if any(one.digest == entry.digest for one in listed):
                return
            self.put(index([*listed, entry]), fallback_tag(subject))
        raise self._broken(subject, "others keep writing its list of referrers")

    # --- requests ---------------------------------------------------------------------------------------------------

    def _pages(self, path: str) -> Iterator[dict[str, Any]]:
        url: str | None = path
        while url:
            answer = self._request("GET", url, headers={"Accept": f"{OCI_INDEX}, application/json"})
            if answer is None:
                return
            yield _json(answer)
            following = answer.links.get("next", {}).get("url")
            url = urljoin(answer.url, following) if following else None

    def _request(self, method: str, path: str, *, missing_ok: bool = False, **more: Any) -> requests.Response | None:
        """An idempotent request, tried again while trouble may pass. None for 404 where that is an answer."""
        try:
            return self._again(lambda: self._once(method, path, **more))
        except RegistryError as error:
            if missing_ok and error.status == requests.codes.not_found:
                return None
            raise

    def _again(self, work: Callable[[], Answer]) -> Answer:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return work()
            except _Again as trouble:
                if attempt == _ATTEMPTS:
                    raise RegistryError(trouble.problem, trouble.status) from None
                self._sleep(min(max(trouble.wait, _BACKOFF * 2 ** (attempt - 1)), _LONGEST_WAIT))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _once(self, method: str, path: str, **more: Any) -> requests.Response:
        """One request, a second time with credentials where the registry asks. Raises _Again, RegistryError."""
        url = path if "://" in path else f"{self._base}{self.repository.name}/{path}"
        if urlsplit(url).netloc != urlsplit(self._base).netloc:
            more["auth"] = _nobody  # an upload or a page elsewhere is none of our registry's credentials' business
        try:
            answer = self._session.request(method, url, timeout=_SECONDS, **more)
            if answer.status_code == requests.codes.unauthorized and self._answer_challenge(answer):
                answer = self._session.request(method, url, timeout=_SECONDS, **more)
        except requests.exceptions.SSLError as error:
            raise RegistryError(self._problem(f"its certificate is not accepted: {_innermost(error)}")) from None
        except requests.exceptions.RequestException as error:
            raise _Again(self._problem(f"the connection broke: {_innermost(error)}")) from None
        if answer.status_code in _BUSY:
            wait = answer.headers.get("Retry-After", "")
            seconds = float(wait) if wait.isdigit() else 0.0
            raise _Again(self._problem(_words(answer)), answer.status_code, seconds)
        if not answer.ok:
            raise RegistryError(self._problem(_words(answer), answer.status_code), answer.status_code)
        return answer

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._authorization:
            request.headers["Authorization"] = self._authorization
        return request

    def _answer_challenge(self, refused: requests.Response) -> bool:
        """Get what the registry asks for. False where we have nothing to give."""
        challenge = refused.headers.get("WWW-Authenticate", "")
        scheme, _, rest = challenge.partition(" ")
        known = self._credentials(self.repository.host)
        before = self._authorization
        if scheme.lower() == "basic" and known:
            pair = base64.b64encode(f"{known.user}:{known.password}".encode()).decode()
            self._authorization = f"Basic {pair}"
        elif scheme.lower() == "bearer":
            self._authorization = f"Bearer {self._token(dict(_CHALLENGE.findall(rest)), known)}"
        return self._authorization != before

    def _token(self, asked: Mapping[str, str], known: Credentials | None) -> str:
        """A token for this repository, and to read from the one to mount from (Docker's token specification)."""
        realm = asked.get("realm", "")
        if urlsplit(realm).scheme != "https" and not is_loopback(urlsplit(realm).netloc):
            raise RegistryError(self._problem("asks for credentials over an open connection"))
        scopes = [f"repository:{self.repository.name}:pull,push"]
        scopes += [f"repository:{self._also_from.name}:pull"] if self._also_from else []
        service = {"service": asked["service"]} if "service" in asked else {}
        if known and known.identity_token:
            form = {"grant_type": "refresh_token", "refresh_token": known.identity_token, "client_id": "truetag"}
            data = {**form, **service, "scope": " ".join(scopes)}
            answer = self._session.post(realm, data=data, auth=_nobody, timeout=_SECONDS)
        else:
            login = (known.user, known.password) if known else _nobody
            answer = self._session.get(realm, params={**service, "scope": scopes}, auth=login, timeout=_SECONDS)
        if not answer.ok:
            raise RegistryError(self._problem(f"no token: {_words(answer)}", answer.status_code), answer.status_code)
        found = _json(answer)
        return str(found.get("token") or found.get("access_token") or "")

    def _scheme(self) -> str:
        """https; on this machine's loopback http too, as Docker has it, where nobody speaks https."""
        host = self.repository.host
        if not is_loopback(host):
            return "https"
        try:
            self._session.get(f"https://{host}/v2/", auth=_nobody, timeout=_SECONDS)
        except requests.exceptions.SSLError as error:
            return "https" if "CERTIFICATE_VERIFY_FAILED" in str(error) else "http"
        except requests.exceptions.RequestException:
            return "http"
        return "https"

    def _problem(self, cause: str, status: int = 0) -> Problem:
        login = status in (requests.codes.unauthorized, requests.codes.forbidden)
        then = f"`docker login {self.repository.host}`, with an account that may write there" if login else ""
        return Problem(where=str(self.repository), cause=cause, then=then or "does the registry run? try again later")

    def _broken(self, what: str, cause: str) -> RegistryError:
        where = str(Reference(self.repository, what))
        return RegistryError(Problem(where=where, cause=cause, then="don't use it; tell who runs the registry"))


def artifact(
    subject: Descriptor, artifact_type: str, layers: Sequence[Descriptor], annotations: Mapping[str, str]
) -> Manifest:
    """The manifest of an artifact that refers to an image (image specification, "Guidelines for Artifact Usage")."""
    data = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": artifact_type,
        "config": Descriptor.of(EMPTY_TYPE, EMPTY).as_json(),
        "layers": [layer.as_json() for layer in layers],
        "subject": Descriptor(media_type=subject.media_type, digest=subject.digest, size=subject.size).as_json(),
        **({"annotations": dict(sorted(annotations.items()))} if annotations else {}),
    }
    return Manifest(media_type=OCI_MANIFEST, content=json.dumps(data, separators=(",", ":")).encode())


def referrer(manifest: Manifest) -> Descriptor:
    """How a list of referrers names an artifact."""
    data = manifest.data
    kind = str(data.get("artifactType") or manifest.config.media_type)
    return Descriptor.of(
        manifest.media_type, manifest.content, artifact_type=kind, annotations=data.get("annotations") or {}
    )


def index(entries: Sequence[Descriptor]) -> Manifest:
    """The list that the fallback tag holds."""
    data = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry.as_json() for entry in entries]}
    return Manifest(media_type=OCI_INDEX, content=json.dumps(data, separators=(",", ":")).encode())


def fallback_tag(subject: str) -> str:
    """Where registries without the referrers API keep them: `sha256-...`."""
    return subject.replace(":", "-")


def is_loopback(host: str) -> bool:
    """Whether `HOST[:PORT]` is this machine."""
    name = re.sub(r":\d+$", "", host).strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _is_host(text: str) -> bool:
    """Docker's rule: what has neither dot nor port nor is `localhost` is a name on Docker Hub."""
    return "." in text or ":" in text or text == "localhost"


def _api_host(host: str) -> str:
    return "registry-1.docker.io" if host == _DOCKER_HUB else host


def _nobody(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _json(answer: requests.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        where = urlsplit(answer.url).netloc
        raise RegistryError(Problem(where=where, cause="its answer is not JSON", then="is it a registry?"))
    return found


def _words(answer: requests.Response) -> str:
    """The registry's own error, in one line."""
    try:
        errors = answer.json()["errors"]
        said = "; ".join(f"{one.get('code', '')}: {one.get('message', '')}".strip(": ") for one in errors)
    except (ValueError, LookupError, TypeError, AttributeError):
        said = ""
    return f"the registry says: HTTP {answer.status_code} {said or answer.reason or ''}".strip()


def _innermost(error: BaseException) -> str:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__
