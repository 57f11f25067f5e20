"""Logins at a registry: Docker's stored credentials, HTTP basic authentication, and bearer tokens.

Sources: RFC 9110 section 11, and the token authentication specification of the distribution project.
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
"""Timeouts of a request: to connect, and of silence."""
_CLIENT_ID = "truetag"


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The login at one registry. No text shows it."""

    user: str = field(repr=False)
    password: str = field(repr=False)
    identity_token: str = field(default="", repr=False)


CredentialStore = Callable[[str], Credentials | None]
"""Host -> its login, None where there is none."""


def docker_credentials(host: str) -> Credentials | None:
    """The login that `docker login` stored, credential helpers included. Raises UserError, without secrets."""
    try:
        found: Any = auth.load_config().resolve_authconfig(None if host == DOCKER_HUB else host)
    except (DockerException, OSError, ValueError):
        raise failed(host, "its credentials can't be read", f"`docker login {host}`") from None
    if not found:
        return None
    return Credentials(
        user=found.get("Username") or found.get("username") or "",
        password=found.get("Password") or found.get("password") or "",
        identity_token=found.get("IdentityToken") or found.get("identitytoken") or "",
    )


def anonymous(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Send a request without a login. Without this, requests would read ~/.netrc."""
    return request


def origin(url: str) -> tuple[str, str, int]:
    """Where a login belongs (RFC 6454): however an address writes its host, and a port that its scheme has anyway."""
    parts = urlsplit(url)
    return (
        parts.scheme,
        parts.hostname or "",
        parts.port or (443 if parts.scheme == "https" else 80),
    )


class Login:
    """Gives the `Authorization` of one registry, by its challenges. Threads may share one object."""

    def __init__(
        self,
        repositories: Sequence[Repository],
        credentials: CredentialStore,
        session: requests.Session,
    ) -> None:
        """The first repository may be written to; the others are read. Tokens are fetched by `session`."""
        self._repository, *self._others = repositories
        self._credentials = credentials
        self._session = session
        self.authorization = ""
        """What the registry accepted last; empty: it has not asked yet, or we have nothing to give."""

    def answer(self, challenge: str, refused: str) -> bool:
        """Answer a `WWW-Authenticate`. Return whether we have another authorization than the refused one.

        `refused`: the `Authorization` of the refused request, empty if it had none. It is compared with
        that, because another thread may have answered the same challenge in the meantime.
        Raises RegistryError and what requests raises.
        """
        authorization = self._authorization_for(challenge)
        if not authorization or authorization == refused:
            return False
        self.authorization = authorization
        return True

    def _authorization_for(self, challenge: str) -> str:
        """The header's value; empty where we have nothing to give. Raises RegistryError."""
        scheme, _, rest = challenge.partition(" ")
        known = self._credentials(self._repository.host)
        if scheme.lower() == "basic" and known:
            pair = base64.b64encode(f"{known.user}:{known.password}".encode()).decode()
            return f"Basic {pair}"
        if scheme.lower() == "bearer":
            parameters = requests.utils.parse_dict_header(rest)  # type: ignore[no-untyped-call]
            return f"Bearer {self._token({name: text for name, text in parameters.items() if text}, known)}"
        return ""

    def _token(self, challenge: Mapping[str, str], known: Credentials | None) -> str:
        realm = challenge.get("realm", "")
        if urlsplit(realm).scheme != "https" and not is_loopback(urlsplit(realm).netloc):
            raise RegistryError(
                problem(self._repository, "asks for credentials over an unencrypted connection")
            )
        service = {"service": challenge["service"]} if "service" in challenge else {}
        if known and known.identity_token:
            grant = {
                "grant_type": "refresh_token",
                "refresh_token": known.identity_token,
                "client_id": _CLIENT_ID,
            }
            form = {**grant, **service, "scope": " ".join(self._scopes(challenge))}
            answer = self._session.post(realm, data=form, auth=anonymous, timeout=SECONDS)
        else:
            login = (known.user, known.password) if known else anonymous
            query = {**service, "scope": self._scopes(challenge)}
            answer = self._session.get(realm, params=query, auth=login, timeout=SECONDS)
        if not answer.ok:
            raise refusal(self._repository, answer, "no token: ")
        found = json_object(answer)
        return str(found.get("token") or found.get("access_token") or "")

    def _scopes(self, challenge: Mapping[str, str]) -> list[str]:
        """What a token is to allow; to delete, only where the registry's challenge names that."""
        own = f"repository:{self._repository.name}"
        wanted = [scope.rpartition(":") for scope in challenge.get("scope", "").split()]
        deletes = any(
            where == own and "delete" in actions.split(",") for where, _, actions in wanted
        )
        return [
            f"{own}:pull,push",
            *([f"{own}:delete"] if deletes else []),
            *(f"repository:{other.name}:pull" for other in self._others),
        ]
