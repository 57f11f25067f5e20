"""Publishing to Debian's registry, with a login, through a proxy that can be told to fail: tags move last, or not."""

import base64
import http.client
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from benchmarks import loopback
from images.building import records, validating
from images.config.names import ImageName
from images.context.base_images import AcquiredBase
from images.engine import Engine, ImageInfo, private_engine
from images.planning import expectations
from images.publish import attachments, publication, sbom
from images.publish.attachments import ATTESTATION, PROVENANCE, SBOM
from images.publish.checks import Check
from images.publish.compression import Compression
from images.publish.policy import ReleasePolicy
from images.publish.publication import PublishResult
from images.publish.unpublished_image import PublishOptions
from images.publish.verify import verify
from images.registry.client import Registry
from images.registry.distribution import referrers_tag
from images.registry.reference import Reference, Repository
from tests.support.small_base import python_base
from validate.claims import Claim, ClaimSet, Tier
from validate.judging import Status

pytestmark = pytest.mark.engine
NAME = "cu126-torch27"
BOTH = (Compression.GZIP, Compression.ZSTD)
USER, PASSWORD = "somebody", os.urandom(8).hex()
SETTINGS = {"TRUETAG_TEST": "1"}
EINOPS = {
    "einops/__init__.py": b"",
    "einops-0.8.2.dist-info/METADATA": b"Metadata-Version: 2.1\nName: einops\nVersion: 0.8.2\n",
    "einops-0.8.2.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "einops-0.8.2.dist-info/RECORD": (
        b"einops/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n"
        b"einops-0.8.2.dist-info/METADATA,,\neinops-0.8.2.dist-info/WHEEL,,\neinops-0.8.2.dist-info/RECORD,,\n"
    ),
}
CLAIMS = ClaimSet(
    image=NAME,
    claims=(
        Claim(
            id="S1",
            subject="einops",
            tier=Tier.STATIC,
            probe="static.pins",
            statement="`import einops` is einops 0.8.2",
            expect={"version": "0.8.2", "locals": [""], "modules": ["einops"], "python": "3.11", "shares": []},
        ),
        Claim(
            id="S7",
            subject="environment",
            tier=Tier.STATIC,
            probe="static.environment",
            statement="the variables are as expected",
            expect={
                "required": SETTINGS,
                "denied": expectations.DENIED_VARIABLES,
                "start_files": expectations.START_FILES,
            },
        ),
    ),
)


# --- a registry, and a proxy in front of it -------------------------------------------------------------------------


@dataclass
class Proxy:
    """Passes requests on to the registry, writes them down, and breaks those it was told to."""

    host: str
    seen: list[tuple[str, str, int]] = field(default_factory=list)
    """Method, path, bytes sent."""
    rules: list[Callable[[str, str], int | None]] = field(default_factory=list)
    """Method, path -> the status that is answered instead; 0: none, the connection drops."""

    def breaks(self, method: str, path: str, statuses: Sequence[int] | None = None) -> None:
        """Answer one status after the other to what fits; none given: 503 for ever."""
        left = list(statuses or ())

        def rule(asked: str, where: str) -> int | None:
            if asked != method or not re.search(path, where):
                return None
            return 503 if statuses is None else left.pop(0) if left else None

        self.rules.append(rule)

    def sent(self, method: str, path: str = "") -> int:
        """Bytes of the bodies of such requests."""
        return sum(size for asked, where, size in self.seen if asked == method and re.search(path, where))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Debian's docker-registry on loopback, with a login: `HOST:PORT`."""
    folder = tmp_path_factory.mktemp("registry")
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    (folder / "htpasswd").write_text(f"{USER}:{hashed}\n")
    login = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
    with loopback.registry(folder / "here", auth=login) as host:
        yield host


@pytest.fixture(scope="module")
def one_proxy(registry: str) -> Iterator[Proxy]:
    """At one address for all tests: layers that another test sent are mounted."""
    found = Proxy(host="")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            body = self.body()
            found.seen.append((self.command, self.path, len(body)))
            told = next((status for rule in found.rules if (status := rule(self.command, self.path)) is not None), None)
            if told is not None:
                self.close_connection = not told
                if told:
                    self.reply(told, [("Content-Type", "text/plain")], b"told to")
                return
            connection = http.client.HTTPConnection(registry, timeout=60)
            headers = {key: ", ".join(self.headers.get_all(key) or ()) for key in self.headers}
            headers.pop("Transfer-Encoding", None)
            connection.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
            answer = connection.getresponse()
            self.reply(answer.status, answer.getheaders(), answer.read())
            connection.close()

        do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = pass_on  # noqa: N815

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def reply(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response_only(status)
            for key, value in headers:
                if key.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(key, value)
            length = {key.lower(): value for key, value in headers}.get("content-length", "0")
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Tests print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.host = f"127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


@pytest.fixture
def proxy(one_proxy: Proxy) -> Proxy:
    one_proxy.rules.clear()
    one_proxy.seen.clear()
    return one_proxy


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of layers that were compressed, for all tests that don't ask for what happens without it."""
    return tmp_path_factory.mktemp("layers")


@pytest.fixture
def login(proxy: Proxy, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `docker login` leaves it."""
    pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    config = {"auths": {host: {"auth": pair} for host in (proxy.host, registry)}}
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture
def publisher(login: None) -> Iterator[Engine]:
    """The engine, by a connection that knows the login."""
    with private_engine.open_engine(None, say=lambda _text: None) as found:
        yield found


# --- thin images, really validated -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Thin:
    """A small image with the labels of a big one, and the folder of its attestation."""

    info: ImageInfo
    folder: Path


@pytest.fixture(scope="module")
def with_python(engine: Engine, base: AcquiredBase) -> Iterator[str]:
    with python_base(engine, base) as found:
        yield found


@pytest.fixture(scope="module")
def make(
    engine: Engine, base: AcquiredBase, with_python: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Thin]]:
    """Builds an image with a Python and one distribution, and validates its claims."""
    made: list[str] = []

    def one(*, torch: str = "2.7.1", pins: str = '{"einops":"0.8.2"}', settings: dict[str, str] | None = None) -> Thin:
        labels = {
            "dev.truetag.image": NAME,
            "dev.truetag.torch": torch,
            "dev.truetag.pins": pins,
            "dev.truetag.matrix-revision": "0123456789ab",
            "dev.truetag.base-digest": base.digest,
            "dev.truetag.serial": str(len(made)),
        }
        dockerfile = "\n".join(
            (
                f"FROM {with_python}",
                "COPY site /usr/local/lib/python3.11/dist-packages",
                *(f"ENV {key}={value}" for key, value in (settings or SETTINGS).items()),
                *(f"LABEL {key}={json.dumps(value)}" for key, value in labels.items()),
                "USER 1001",
            )
        )
        # An image is as old as its newest layer: without a file of its own each would be as old as the first.
        files = {f"site/{path}": content for path, content in EINOPS.items()} | {"site/serial": str(len(made)).encode()}
        tag = f"truetag-test-publish:{len(made)}"
        made.append(tag)
        engine.build({"Dockerfile": dockerfile.encode(), **files}, tag)
        info = engine.inspect(tag)
        folder = tmp_path_factory.mktemp("attestation")
        evidence, verdict = validating.measure_and_judge(engine, info.id, CLAIMS, (Tier.STATIC,))
        records.record_validation(folder, evidence, verdict)
        record: dict[str, Any] = {
            "digest": info.id,
            "base": {"reference": base.reference, "origin": str(base.origin), "digest": base.digest},
            "engine": {"version": engine.facts.version},
        }
        (folder / "build.json").write_text(json.dumps(record))
        return Thin(info, folder)

    yield one
    for tag in made:
        engine.remove(tag, force=True)


@pytest.fixture(scope="module")
def first(make: Callable[..., Thin]) -> Thin:
    return make()


@pytest.fixture(scope="module")
def second(make: Callable[..., Thin], first: Thin) -> Thin:
    """Built later than the first."""
    return make()


@pytest.fixture
def options(proxy: Proxy, first: Thin, request: pytest.FixtureRequest, cache: Path) -> PublishOptions:
    """To a repository that no other test uses."""
    place = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())
    return PublishOptions(
        name=ImageName.parse(NAME),
        repository=Repository(proxy.host, f"staging/{place[:60].strip('-')}"),
        attestation=first.folder,
        policy=policy(aliases=("latest", "cu126")),
        locks={"locks/x/torch.txt": b"torch==2.7.1\n"},
        cache=cache,
        compressions=(Compression.GZIP,),
    )


def policy(
    gate: Sequence[Tier] = (Tier.STATIC,),
    alias_gate: Sequence[Tier] = (Tier.STATIC,),
    aliases: Sequence[str] = (),
    claims: ClaimSet = CLAIMS,
) -> ReleasePolicy:
    return ReleasePolicy(
        gate=gate, alias_gate=alias_gate, aliases_of=lambda _name: aliases, claims_of=lambda _labels: claims
    )


def with_policy(options: PublishOptions, **changes: Any) -> PublishOptions:
    return replace(options, policy=replace(options.policy, **changes))


def checked(reference: Reference, by: ReleasePolicy | None = None, **more: Any) -> tuple[str, tuple[Check, ...]]:
    """What `verify` says of an image."""
    found = verify(reference, by or policy(), **more)
    return found.reference, found.checks


def publish_it(engine: Engine, thin: Thin, options: PublishOptions) -> PublishResult:
    return publication.publish(engine, thin.info.id, replace(options, attestation=thin.folder), say=lambda _text: None)


def names(repository: Repository) -> dict[str, str]:
    """Every moving tag of a repository, and what it names."""
    with Registry(repository) as found:
        return {tag: found.get(tag).digest for tag in found.tags() if tag in (NAME, "latest", "cu126")}


# --- publish --------------------------------------------------------------------------------------------------------


def test_a_validated_image_is_published_with_all_that_belongs_to_it(
    publisher: Engine, first: Thin, options: PublishOptions
) -> None:
    done = publish_it(publisher, first, options)
    digest = done.reference.partition("@")[2]
    fixed = done.tags[0]
    assert re.fullmatch(rf"{NAME}-\d{{8}}-{first.info.id[7:19]}", fixed)
    assert done.tags == (fixed, NAME, "latest", "cu126") and not done.unmoved_aliases
    assert names(options.repository) == dict.fromkeys((NAME, "latest", "cu126"), digest)
    with Registry(options.repository) as source:
        remote = attachments.load(source, source.get(NAME))
        assert source.find(referrers_tag(digest)) is not None, "Debian's registry 2.8 has no referrers API"
    assert remote.image_id == first.info.id
    assert {one.artifact_type for one in remote.attachments} == {ATTESTATION, SBOM, PROVENANCE}
    (found,) = remote.of(SBOM)
    content = next(iter(found.files.values()))
    assert sbom.versions(content)["einops"] == "0.8.2"
    debian = [row for row in json.loads(content)["components"] if row["purl"].startswith("pkg:deb/debian/libc6@")]
    assert len(debian) == 1 and "distro=debian-12" in debian[0]["purl"]


def test_its_files_are_what_was_judged(publisher: Engine, first: Thin, options: PublishOptions) -> None:
    publish_it(publisher, first, options)
    with Registry(options.repository) as source:
        (found,) = attachments.load(source, source.get(NAME)).of(ATTESTATION)
    assert found.files == {name: (first.folder / name).read_bytes() for name in ("verdict.json", "evidence.json")}


def test_verify_passes(publisher: Engine, first: Thin, options: PublishOptions) -> None:
    publish_it(publisher, first, options)
    reference = Reference(options.repository, NAME)
    _, found = checked(reference, unsigned=True)
    assert {check.subject: check.status for check in found} == dict.fromkeys(
        ("attachments", "attestation", "labels", "SBOM", "provenance", "gate static"), Status.PASS
    ), found
    _, found = checked(reference, policy(gate=(Tier.STATIC, Tier.GPU)))
    states = {check.subject: check.status for check in found}
    assert (states["signature"], states["gate static,gpu"]) == (Status.UNPROVEN, Status.FAIL)


def test_a_second_time_nothing_is_sent(publisher: Engine, first: Thin, options: PublishOptions, proxy: Proxy) -> None:
    before = publish_it(publisher, first, options)
    proxy.seen.clear()
    assert publish_it(publisher, first, options).reference == before.reference
    assert proxy.sent("PATCH") == 0 and proxy.sent("PUT", "blobs") == 0
    with Registry(options.repository) as source:
        assert len(source.referrers(before.reference.partition("@")[2])) == 3


def test_the_published_image_comes_back_by_its_tag(
    publisher: Engine, make: Callable[..., Thin], options: PublishOptions
) -> None:
    """As `publish` stores it by default, also where the engine is one that can't take zstd (20.10)."""
    thin = make()
    publish_it(publisher, thin, replace(options, compressions=BOTH))
    for tag in publisher.inspect(thin.info.id).tags:
        publisher.remove(tag, force=True)
    assert publisher.find(thin.info.id) is None
    pulled = publisher.pull(f"{options.repository}:latest")
    try:
        assert pulled.id == thin.info.id
        _, verdict = validating.measure_and_judge(publisher, pulled.id, CLAIMS, (Tier.STATIC,))
        assert verdict.overall is Status.PASS
    finally:
        publisher.remove(f"{options.repository}:latest", force=True)


def test_no_name_of_the_registry_is_left_in_the_engine(publisher: Engine, first: Thin, options: PublishOptions) -> None:
    publish_it(publisher, first, options)
    assert not [tag for tag in publisher.inspect(first.info.id).tags if tag.startswith("127.0.0.1")]
