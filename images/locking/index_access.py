"""Reaches indexes that ask for a login, with the user's, and with errors that say what to do.

The login of a private index is taken from the places that uv reads: variables of the environment,
netrc, a keyring. It goes into requests to the index, and nowhere else: no lock, build context or
message has it. The default index has its login in its address, which build steps get, too.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from threading import Lock
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

import requests
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_netrc_auth

from images.errors import Problem, UserError, failed, root_cause, wrong
from images.host import web
from images.planning.image import Pin, PrivateIndex

_PATIENCE = 30.0
"""Seconds that an index has to answer."""
_PATIENCE_WITH_KEYRING = 60.0
"""Seconds that the program `keyring` has to answer. It may wait for somebody to unlock it."""
_ONE_QUESTION = Lock()
"""Held while a keyring is asked: wheels are fetched in several threads."""
_VARIABLES_OF_DEFAULT_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
"""Variables that name the default index, the first that counts first (`uv.with_index_of_pip`)."""
_USERINFO = re.compile(r"(?<=://)[^/\s]+@")
"""User and password of an address, up to the last `@` before a slash: a password may have one."""


class Login(NamedTuple):
    """A user and password for an index."""

    user: str
    password: str
    place: str
    """Where it was found, for messages."""


class DefaultIndex(NamedTuple):
    """The index that a variable of this machine names in place of PyPI."""

    variable: str
    address: str
    """It may have a user and a password before the host."""

    @property
    def url(self) -> str:
        """The address without user and password."""
        parts = urlsplit(self.address)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class IndexLogin(AuthBase):
    """Adds the user's login to requests to private indexes and to the default one.

    Each login goes to the server of its index only. Other hosts get what netrc has for them, as
    requests does by itself.
    """

    def __init__(self, indexes: Mapping[str, str], *, only_private: bool = False) -> None:
        """Take the private indexes: the name of each -> its address.

        `only_private`: whether all that is asked for comes from them, and nothing from the default
        index.
        """
        self._indexes = indexes
        self._only_private = only_private

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add a login to a request before it is sent. requests calls this for each request."""
        url = str(request.url)
        _index, login = _index_and_login(url, self._indexes, only_private=self._only_private)
        return _add(request, login.user, login.password) if login else request


def _index_and_login(
    url: str, private: Mapping[str, str], *, only_private: bool = False
) -> tuple[PrivateIndex | DefaultIndex | None, Login | None]:
    """Return the index that a URL belongs to, and the login that a request to the URL gets.

    private: the name of each private index -> its address.
    only_private: whether the URL is known to be of one of them, and not of the default index.

    The index is one on the URL's server; None: there is none, and the login is that of netrc.
    Raises UserError if a keyring does not answer.
    """
    # The indexes on this server, with the precedence of each: where two fit equally well, the one
    # with the higher number gets the request. The private login is not for the default index.
    indexes: list[tuple[PrivateIndex | DefaultIndex, Login | None, int]] = []
    for name, address in private.items():
        if _same_server(url, address):
            private_index = PrivateIndex(name=name, url=address)
            # A private index gets its own login, and without one none at all.
            indexes.append((private_index, find_login(private_index), 1))
    default = find_default_index()
    if default and _same_server(url, default.url):
        default_login = find_default_login(default)
        is_first = default_login is not None and not only_private
        indexes.append((default, default_login, 2 if is_first else 0))

    if indexes:
        # One server may have several indexes: what is asked lies below one of them, or beside.
        index, login, _precedence = max(
            indexes, key=lambda row: (_segments_in_common(url, row[0].url), row[2])
        )
        return index, login
    # A user and a password; None: netrc has none for this host.
    login_of_netrc = get_netrc_auth(url)
    return None, Login(*login_of_netrc, place="netrc") if login_of_netrc else None


def _segments_in_common(url: str, address: str) -> int:
    """Return with how many equal segments the paths of two URLs begin.

    `/pypi/torch/` and `/pypi-team/torch/` have none in common.
    """
    count = 0
    for segment, other in zip(_segments(url), _segments(address), strict=False):
        if segment != other:
            break
        count += 1
    return count


def _segments(url: str) -> list[str]:
    """Return the segments of a URL's path, with codes (%40) as characters."""
    return [unquote(segment) for segment in urlsplit(url).path.split("/") if segment]


def _same_server(url: str, other: str) -> bool:
    """Return whether two URLs have the same scheme, host and port.

    requests writes hosts in small letters, and an address may name the port that is usual anyway.
    """
    servers = []
    for address in (url, other):
        parts = urlsplit(address)
        usual_port = 443 if parts.scheme == "https" else 80
        servers.append((parts.scheme, parts.hostname, parts.port or usual_port))
    return servers[0] == servers[1]


def _add(request: requests.PreparedRequest, user: str, password: str) -> requests.PreparedRequest:
    """Return a request with a login (HTTP basic authentication)."""
    # In bytes, as requests would otherwise encode a password in Latin-1, and uv uses UTF-8.
    authorised: requests.PreparedRequest = HTTPBasicAuth(user.encode(), password.encode())(request)
    return authorised


def find_login(index: PrivateIndex) -> Login | None:
    """Return the user's login for a private index; None if there is none.

    It is looked for where uv does, in uv's order: variables with the name of the index, netrc, and
    a keyring if UV_KEYRING_PROVIDER is `subprocess`. Raises UserError if the keyring does not
    answer.
    """
    user_variable, password_variable = index.login_variables
    user = os.environ.get(user_variable, "")
    password = os.environ.get(password_variable, "")
    if password:
        return Login(user, password, password_variable)

    # netrc may have a login for this host. If a variable names a user, only that user's login
    # counts.
    of_netrc = get_netrc_auth(index.url)
    if of_netrc:
        netrc_user, netrc_password = of_netrc
        if user in ("", netrc_user):
            return Login(netrc_user, netrc_password, place="netrc")
    if os.environ.get("UV_KEYRING_PROVIDER") == "subprocess":
        with _ONE_QUESTION:
            return ask_keyring(index, user)
    return None


def find_default_index() -> DefaultIndex | None:
    """Return the index that a variable of the environment names in place of PyPI; None: none does.

    The first variable that is set counts. Raises UserError if the address in any of the variables
    can't be read.
    """
    require_readable_addresses(os.environ)
    for variable in _VARIABLES_OF_DEFAULT_INDEX:
        value = os.environ.get(variable)
        if value:
            return DefaultIndex(variable, strip_index_name(value))
    return None


def find_default_login(index: DefaultIndex) -> Login | None:
    """Return the user's login for the default index: of its address, or netrc's; None: neither."""
    parts = urlsplit(index.address)
    user = unquote(parts.username or "")
    if parts.password:
        return Login(user, unquote(parts.password), index.variable)
    of_netrc = get_netrc_auth(index.url)
    if of_netrc:
        return Login(*of_netrc, place="netrc")
    # Some servers take a token as the user, without a password.
    return Login(user, "", index.variable) if user else None


def describe_refusal(url: str, status: int, private: Mapping[str, str]) -> tuple[str, str]:
    """Return why a server refuses what was asked, and what to do about it, as two clauses.

    The server is that of an index, or has its files. It answered `url` with `status`, HTTP 401 or
    403. The first clause is a predicate, whose subject is the server. `private` has the private
    indexes: the name of each -> its address.
    """
    index, login = _index_and_login(url, private)
    if index is None:
        then = f"correct the line of {urlsplit(url).hostname} in ~/.netrc, or write one"
        return f"asks for a login, or refuses the one of ~/.netrc (HTTP {status})", then
    if login:
        then = f"correct user and password in {login.place}, or ask who runs the index"
        return f"refuses the login of {login.place} (HTTP {status})", then
    if isinstance(index, PrivateIndex):
        then = ", or ".join(_ways_to_log_in(index, url))
        return f"asks for a login (HTTP {status}), and none is set", then
    # Build steps take the login from the address only, and can't read netrc.
    then = (
        f"write user and password into the address in {index.variable}, before the host "
        f"(USER:PASSWORD@{urlsplit(index.url).netloc}), with @ as %40, : as %3A and / as %2F"
    )
    return f"asks for a login (HTTP {status}), and none is set", then


def require_readable_addresses(variables: Mapping[str, str]) -> None:
    """Raise UserError if the address of a default index can't be read, or not in one way only.

    uv and Python end the host at the first `/`, `?` or `#`, also if that stands in a password. uv
    would then print the password, in the message that says what is wrong. So the message of this
    error has nothing of the address. An index that is a folder of this machine has no address.
    """
    for variable in _VARIABLES_OF_DEFAULT_INDEX:
        fault = _fault_of_address(strip_index_name(variables.get(variable, "")))
        if fault:
            then = (
                "write it as https://HOST/PATH or https://USER:PASSWORD@HOST/PATH, with special "
                "characters of user and password as codes: / as %2F, # as %23, @ as %40 (in the "
                "path, too), ? as %3F, : as %3A, [ as %5B, a backslash as %5C, a space as %20"
            )
            raise wrong(variable, f"the address of the index can't be read: {fault}", then)


def _fault_of_address(address: str) -> str:
    """Return why the address of an index can't be read, without a part of it; empty: it can.

    A folder has no fault here: it begins with `/`, `.` or `file:`. HOST/simple is an address.
    """
    # uv takes a backslash for a slash, and Python drops line breaks.
    if "://" in address and re.search(r"[\s\\]", address.strip()):
        return "it has a space, a line break or a backslash"
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        # Reading the port raises ValueError if it is no number up to 65535.
        _port = parts.port
    except ValueError:
        return "its host or port is not valid, or a special character before the host is not coded"

    if parts.scheme not in ("http", "https"):
        is_folder = parts.scheme == "file" or not address or address.startswith(("/", "."))
        return "" if is_folder else "it begins with neither https:// nor http://"
    if not re.fullmatch(r"[\w.:-]+", host):
        return "it has no host name, or one with other characters than letters, digits, - and ."
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        return "it has an @ after the host, so a character before that @ may not be coded"
    return ""


def redact(text: str, settings: Iterable[tuple[str, str]]) -> str:
    """Return a text with `***` in place of the passwords of settings and the users of addresses.

    `settings` are (name, value) pairs. Three things in them are passwords:

    - the value of a setting whose name ends with `_PASSWORD`,
    - PASSWORD of an address `https://USER:PASSWORD@HOST` in a value,
    - a whole address with an `@` that can't be read: its password may end anywhere.

    Then what stands before the `@` is replaced in all addresses of the text.
    """
    passwords = []
    for name, value in settings:
        if name.endswith("_PASSWORD") and value:
            passwords.append(value)
        # A value may have several addresses, with spaces between them. It may also be one address
        # with a space in its password. So look at the whole value and at each of its words.
        for word in {value, *value.split()}:
            address = strip_index_name(word)
            password_of_address = re.search(r"://[^:@]*:(.+)@", address)
            if password_of_address:
                passwords.append(password_of_address[1])
            if "@" in address and _fault_of_address(address):
                passwords.append(address)

    # Longer ones first: a password may be a part of another.
    for password in sorted(passwords, key=len, reverse=True):
        # An address has a password quoted (%40 for @), and a message may have it plain.
        for spelling in (password, unquote(password), quote(unquote(password), safe="")):
            text = text.replace(spelling, "***")
    return _USERINFO.sub("***@", text)


def without_login(address: str) -> str:
    """Return an address without user and password, for messages."""
    return _USERINFO.sub("***@", address)


def strip_index_name(index: str) -> str:
    """Return the address of an index, which uv also takes as `NAME=ADDRESS`.

    Without the name, uv takes its login from the address or netrc, and not from variables that have
    the name: a private index may have the same.
    """
    return re.sub(r"^[\w.-]+=", "", index)


@cache
def ask_keyring(index: PrivateIndex, user: str) -> Login | None:
    """Return the login that the program `keyring` has for an index's address or host.

    It is asked once for all requests of this process: each question may take seconds, or a click of
    the user. An empty `user` is not known: the keyring is then asked for user and password. None if
    it has no login, or is not installed. Raises UserError if it does not answer.
    """
    for service in (index.url, urlsplit(index.url).netloc):
        options = ["get", service, user] if user else ["--mode", "creds", "get", service]
        try:
            finished = subprocess.run(
                ["keyring", *options],
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=_PATIENCE_WITH_KEYRING,
            )
        except OSError:
            return None
        except subprocess.TimeoutExpired:
            user_variable, password_variable = index.login_variables
            cause = (
                "the command `keyring`, which was asked for its login, did not answer within "
                f"{_PATIENCE_WITH_KEYRING:g} seconds"
            )
            then = (
                f"unlock the keyring, so that `keyring {' '.join(options)}` answers by itself; or "
                f"set {user_variable} and {password_variable}; then give the command again"
            )
            raise failed(str(index), cause, then) from None
        lines = finished.stdout.splitlines()
        # `--mode creds` prints the user in a line above the password.
        if finished.returncode == 0 and lines:
            return Login(user or lines[0], lines[-1], "keyring")
    return None


def require_packages(pins: Iterable[Pin], again: str) -> None:
    """Ask each private index for the pages of its packages among these pins.

    uv can't be trusted to say what is wrong: it reports an index that refuses a login as one that
    does not have the package. `again` is the command to give when it is mended.

    Raises UserError with the problems of all indexes at once.
    """
    packages_of_index: dict[PrivateIndex, set[str]] = {}
    for pin in pins:
        if pin.index:
            packages_of_index.setdefault(pin.index, set()).add(pin.name)

    problems = []
    for index, packages in packages_of_index.items():
        with web.session(IndexLogin({index.name: index.url}, only_private=True)) as session:
            for package in sorted(packages):
                problem = _ask_for(package, index, session, again)
                if problem:
                    problems.append(problem)
                    # The other packages of this index would have the same problem.
                    break
    if problems:
        raise UserError(problems, code=1)


def _ask_for(
    package: str, index: PrivateIndex, session: requests.Session, again: str
) -> Problem | None:
    """Ask a private index for the page of a package; return what is wrong, or None.

    `session` logs in to the index. `again` is the command to give when it is mended.
    """
    try:
        answer = session.get(f"{index.url}/{package}/", timeout=_PATIENCE)
        answer.raise_for_status()
    except requests.RequestException as error:
        return explain(error, package, index, again)
    # pypiserver, for example, sends on to PyPI whoever asks for what it does not have.
    if not _same_server(answer.url, index.url):
        cause = (
            f"lacks {package}, or hides it without a login: it sends requests for {package} on to "
            f"{urlsplit(answer.url).hostname}, where another package may have this name"
        )
        user_variable, password_variable = index.login_variables
        then = (
            f"upload {package} to {index.name}; or, if that index asks for a login, set "
            f"{user_variable} and {password_variable}; then `{again}`"
        )
        return Problem(where=str(index), cause=cause, then=then)
    return None


def _place_of_login(index: PrivateIndex, asked_url: str) -> str:
    """Return where the login lies that a request was sent with; empty: there was none.

    `asked_url` is the URL that was asked: one of the index, or of a server to which it points.
    """
    _index, login = _index_and_login(asked_url, {index.name: index.url}, only_private=True)
    return login.place if login else ""


def _ways_to_log_in(index: PrivateIndex, asked_url: str) -> list[str]:
    """Return what a user can do to give a login for this URL, as phrases."""
    write_netrc = f"write a line for {urlsplit(asked_url).hostname} into ~/.netrc, with its login"
    if not _same_server(asked_url, index.url):
        return [write_netrc]
    user_variable, password_variable = index.login_variables
    return [
        f"set {user_variable} and {password_variable}",
        write_netrc,
        "use a keyring (UV_KEYRING_PROVIDER=subprocess)",
    ]


def explain(
    error: requests.RequestException, package: str, index: PrivateIndex, again: str
) -> Problem:
    """Return the problem that a private index did not give a package's page or file, for people.

    `error` is what the request raised. `again` is the command to give when it is mended.
    """
    # The index may have sent the request on to another server, or name files on one. That one is
    # asked with the login that netrc has for it, and never with that of the index.
    asked_url = index.url if error.request is None else str(error.request.url)
    is_elsewhere = not _same_server(asked_url, index.url)
    host = urlsplit(asked_url).hostname
    # 0: there was no answer.
    status = error.response.status_code if error.response is not None else 0
    if status in (401, 403):
        place = _place_of_login(index, asked_url)
        if place:
            cause = f"refuses the login of {place} for {package} (HTTP {status})"
            then = f"correct user and password in {place}, or ask who runs {host}; then `{again}`"
        else:
            cause = f"asks for a login for {package} (HTTP {status}), and none is set"
            then = f"{', or '.join(_ways_to_log_in(index, asked_url))}; then `{again}`"
    elif status == requests.codes.not_found:
        cause = f"does not have {package}"
        then = (
            f"publish {package} on this index, or correct `indexes` in matrix.yaml; then `{again}`"
        )
    elif status:
        cause = f"answers HTTP {status} for {package}"
        then = f"ask who runs {host}; then `{again}`"
    elif isinstance(error, requests.exceptions.SSLError):
        cause = f"shows a certificate that is not trusted: {root_cause(error)}"
        then = (
            "name a file with its authority, and with those of all other servers, in "
            f"SSL_CERT_FILE; then `{again}`"
        )
    else:
        cause = f"can't be reached: {root_cause(error)}"
        then = f"see that {host} runs, and that this machine reaches it; then `{again}`"
    if is_elsewhere:
        cause = f"sends requests for {package} on to {host}, which {cause}"
    return Problem(where=str(index), cause=cause, then=then)
