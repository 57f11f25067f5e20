"""Log in at a registry with Docker's stored credentials: by HTTP basic auth or a bearer token.

Sources: RFC 9110 section 11, and the token authentication specification of the distribution
project.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import requests
from docker import auth
from docker.errors import DockerException

from images.errors import failed
from images.registry.errors import RegistryError, json_object, problem, refusal
from images.registry.reference import DOCKER_HUB, Repository, is_loopback

SECONDS = (10, 60)
"""Timeouts of a request: to connect, and while the server sends nothing."""
_CLIENT_ID = "truetag"


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The login at one registry. Its `repr` shows no secrets."""

    user: str = field(repr=False)
    password: str = field(repr=False)
    identity_token: str = field(default="", repr=False)


CredentialStore = Callable[[str], Credentials | None]
"""A function from a host to its login; None where there is none."""


def docker_credentials(host: str) -> Credentials | None:
    """Return the login that `docker login` stored for a host; None if there is none.

    Docker's credential helpers are asked, too. Raises UserError, without secrets in its message, if
    the stored credentials cannot be read.
    """
    try:
        # The SDK takes None for Docker Hub.
        entry: Any = auth.load_config().resolve_authconfig(None if host == DOCKER_HUB else host)
    except (DockerException, OSError, ValueError):
        cause = "Docker's configuration can't be read for the credentials of this registry"
        raise failed(host, cause, f"`docker login {host}`, then give the command again") from None
    if not entry:
        return None
    # Credential helpers spell the keys differently than Docker's configuration file.
    return Credentials(
        user=entry.get("Username") or entry.get("username") or "",
        password=entry.get("Password") or entry.get("password") or "",
        identity_token=entry.get("IdentityToken") or entry.get("identitytoken") or "",
    )


def anonymous(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Send a request without a login. Without this, requests would read ~/.netrc."""
    return request


def origin(url: str) -> tuple[str, str, int]:
    """Return the scheme, host and port of a URL: its origin (RFC 6454).

    A login may only be sent to the origin it belongs to. The host is in lower case, and a missing
    port is that of the scheme.
    """
    parts = urlsplit(url)
    default_port = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname or "", parts.port or default_port


class Login:
    """Answers the login challenges of one registry. Threads may share one object."""

    def __init__(
        self,
        repositories: Sequence[Repository],
        credentials: CredentialStore,
        session: requests.Session,
    ) -> None:
        """Prepare to log in for these repositories: to write to the first, and to read the others.

        `credentials` is a function that returns the login of a host. Tokens are fetched by
        `session`.
        """
        self._repository, *self._others = repositories
        self._credentials = credentials
        self._session = session
        self.authorization = ""
        """The `Authorization` header to send; empty until the registry asks for a login."""

    def answer(self, challenge: str, refused: str) -> bool:
        """Log in as the registry asks, and return whether to send the refused request again.

        False if there is no login, or only the one that was refused.

        challenge: the header `WWW-Authenticate` of the registry's answer.
        refused: the header `Authorization` of the request that it refused; empty if it had none.

        Raises RegistryError, and whatever requests raises.
        """
        authorization = self._authorization_for(challenge)
        # The same login would be refused again. (`self.authorization` may be another one: another
        # thread may have logged in meanwhile.)
        if not authorization or authorization == refused:
            return False
        self.authorization = authorization
        return True

    def _authorization_for(self, challenge: str) -> str:
        """Return the `Authorization` header that answers a challenge of the registry.

        `challenge` is its header `WWW-Authenticate`. Empty if there is no login for it, or for an
        unknown kind of challenge. Raises RegistryError if no token could be fetched.
        """
        # A challenge reads `Bearer realm="https://...",service="...",scope="..."`.
        scheme, _, text = challenge.partition(" ")
        credentials = self._credentials(self._repository.host)
        if scheme.lower() == "basic" and credentials:
            pair = f"{credentials.user}:{credentials.password}"
            return f"Basic {base64.b64encode(pair.encode()).decode()}"
        if scheme.lower() == "bearer":
            parsed = requests.utils.parse_dict_header(text)  # type: ignore[no-untyped-call]
            # Drop parameters without a value.
            parameters = {name: value for name, value in parsed.items() if value}
            return f"Bearer {self._fetch_token(parameters, credentials)}"
        return ""

    def _fetch_token(self, challenge: Mapping[str, str], credentials: Credentials | None) -> str:
        """Return a token from the server that a bearer challenge names as its `realm`.

        `challenge` has the parameters of the challenge: `realm`, `service` and `scope`. Without
        credentials, the token is for anonymous access. Empty if the server's answer has no token.
        Raises RegistryError if the server refuses, or if the realm is not encrypted: then nothing
        is sent.
        """
        realm = challenge.get("realm", "")
        if urlsplit(realm).scheme != "https" and not is_loopback(urlsplit(realm).netloc):
            cause = f"the registry asks for credentials over an unencrypted connection ({realm})"
            raise RegistryError(problem(self._repository, cause))

        # The token server may serve several registries: `service` says which one asks.
        service = {"service": challenge["service"]} if "service" in challenge else {}
        scopes = self._scopes(challenge)
        if credentials and credentials.identity_token:
            # OAuth 2: an identity token is exchanged by POST.
            form = {
                "grant_type": "refresh_token",
                "refresh_token": credentials.identity_token,
                "client_id": _CLIENT_ID,
                **service,
                "scope": " ".join(scopes),
            }
            answer = self._session.post(realm, data=form, auth=anonymous, timeout=SECONDS)
        else:
            query: dict[str, str | list[str]] = {**service, "scope": scopes}
            login = (credentials.user, credentials.password) if credentials else anonymous
            answer = self._session.get(realm, params=query, auth=login, timeout=SECONDS)
        if not answer.ok:
            raise refusal(self._repository, answer, "no token: ")
        # Docker calls it `token`, OAuth 2 `access_token`.
        data = json_object(answer)
        return str(data.get("token") or data.get("access_token") or "")

    def _scopes(self, challenge: Mapping[str, str]) -> list[str]:
        """Return what a token shall allow: `repository:NAME:pull,push` and so on.

        We ask to write to our repository, and to read the others; and to delete, if the parameter
        `scope` of the registry's challenge names that.
        """
        own = f"repository:{self._repository.name}"
        scopes = [f"{own}:pull,push"]
        # A challenge may name several scopes, separated by spaces.
        for scope in challenge.get("scope", "").split():
            resource, _, actions = scope.rpartition(":")
            if resource == own and "delete" in actions.split(","):
                scopes.append(f"{own}:delete")
                break
        for other in self._others:
            scopes.append(f"repository:{other.name}:pull")
        return scopes
