"""The host's network settings: what a build gets of them, and what it never gets."""

import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest

from images.context import hosting
from images.context.hosting import HostSettings, settings_of
from images.errors import UserError

PEM = b"-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"


def variables_in_a_step(host: HostSettings, folder: Path) -> dict[str, str]:
    """Return the variables that a POSIX shell has after it has read host/env."""
    (folder / "env").write_bytes(host.files()["host/env"])
    finished = subprocess.run(
        ["/bin/sh", "-ec", '. "$1"; env -0', "sh", str(folder / "env")],
        env={},
        capture_output=True,
        check=True,
    )
    variables = {}
    for entry in finished.stdout.decode().split("\0"):
        name, _, value = entry.partition("=")
        # The shell sets the last four itself.
        if name and name not in ("PWD", "_", "SHLVL", "OLDPWD"):
            variables[name] = value
    return variables


def names_in(warnings: tuple[str, ...]) -> list[str]:
    """Return the variables that warnings are about."""
    return [warning.split()[0] for warning in warnings]


# --- certificates ---------------------------------------------------------------------------------


def test_the_first_variable_that_names_a_bundle_counts_and_others_are_warned_of(
    tmp_path: Path,
) -> None:
    (tmp_path / "ca").write_bytes(PEM)

    host = settings_of(
        {
            "PIP_CERT": "/gone",
            "SSL_CERT_FILE": str(tmp_path),  # a folder
            "REQUESTS_CA_BUNDLE": f"{tmp_path}/ca",
        }
    )

    assert host.ca == PEM
    assert names_in(host.warnings) == ["PIP_CERT", "SSL_CERT_FILE"]


def test_a_bundle_reaches_uv_pip_curl_git_and_apt(tmp_path: Path) -> None:
    (tmp_path / "ca").write_bytes(PEM)

    host = settings_of({"SSL_CERT_FILE": f"{tmp_path}/ca"})

    files = host.files()
    assert files["host/ca.crt"] == PEM
    assert files["host/apt.conf"] == b'Acquire::https::CaInfo "/run/host/ca.crt";\n'
    assert variables_in_a_step(host, tmp_path) == {
        "APT_CONFIG": "/run/host/apt.conf",
        "SSL_CERT_FILE": "/run/host/ca.crt",
        "REQUESTS_CA_BUNDLE": "/run/host/ca.crt",
        "CURL_CA_BUNDLE": "/run/host/ca.crt",
        "PIP_CERT": "/run/host/ca.crt",
        "GIT_SSL_CAINFO": "/run/host/ca.crt",
    }


# --- package indexes ------------------------------------------------------------------------------


def test_without_settings_there_is_an_empty_file_to_source(tmp_path: Path) -> None:
    host = settings_of({})

    assert host.files() == {"host/env": b""}
    assert variables_in_a_step(host, tmp_path) == {}
    assert host.network(local=True) is None


def test_values_reach_a_step_unchanged_by_its_shell(tmp_path: Path) -> None:
    address = "https://me:p'a$(id)\"`x`;w@example.test/simple"

    host = settings_of({"UV_DEFAULT_INDEX": address, "https_proxy": "http://a b;c\\"})

    assert variables_in_a_step(host, tmp_path) == {
        "UV_DEFAULT_INDEX": address,
        "https_proxy": "http://a b;c\\",
        "HTTPS_PROXY": "http://a b;c\\",
    }


def test_the_index_of_pip_serves_uv_unless_uv_has_its_own() -> None:
    of_pip = {"PIP_INDEX_URL": "https://a.test/simple"}
    of_uv = {"UV_INDEX_URL": "https://b.test/simple"}

    assert settings_of(of_pip).index["UV_DEFAULT_INDEX"] == "https://a.test/simple"
    assert "UV_DEFAULT_INDEX" not in settings_of({**of_pip, **of_uv}).index


def test_an_index_in_files_of_this_machine_is_left_out_with_a_warning() -> None:
    host = settings_of({"UV_DEFAULT_INDEX": "file:///o", "PIP_INDEX_URL": "/opt/simple"})

    assert host.index == {}
    assert names_in(host.warnings) == ["PIP_INDEX_URL", "UV_DEFAULT_INDEX"]


@pytest.mark.parametrize("name", hosting._FURTHER_INDEXES)
def test_a_further_index_is_left_out_with_a_warning_that_hides_its_password(name: str) -> None:
    host = settings_of({name: "https://me:secret@inner.test/simple"})

    assert host.index == {}
    assert names_in(host.warnings) == [name]
    assert "secret" not in host.warnings[0]


@pytest.mark.parametrize("name", ["PIP_FIND_LINKS", "UV_FIND_LINKS", "UV_CACHE_DIR", "HOME"])
def test_other_variables_are_left_out_without_a_word(name: str) -> None:
    host = settings_of({name: "https://x.test/"})

    assert host.index == {}
    assert host.warnings == ()


# --- proxies and apt ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host_name", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", "proxy.localhost"]
)
@pytest.mark.parametrize(
    ("variable", "name_of_index"),
    [("HTTP_PROXY", ""), ("UV_DEFAULT_INDEX", ""), ("UV_DEFAULT_INDEX", "inner=")],
)
def test_an_address_on_this_machine_needs_the_hosts_network_and_is_warned_of(
    variable: str, name_of_index: str, host_name: str
) -> None:
    host = settings_of({variable: f"{name_of_index}http://me:secret@{host_name}:3128"})

    assert host.network(local=True) == "host"
    assert variable.lower() in host.warnings[0].lower()
    assert "secret" not in host.warnings[0]


def test_a_rootless_engine_can_not_reach_an_address_on_this_machine() -> None:
    host = settings_of({"https_proxy": "http://me:secret@127.0.0.1:3128"})

    with pytest.raises(UserError) as error:
        host.network(local=True, rootless=True)

    (problem,) = error.value.problems
    assert problem.where == "https_proxy" and "rootless" in problem.cause
    assert "secret" not in problem.cause
    assert "another address" in problem.then
    # Without the network, nothing need be reached; elsewhere it is another loopback.
    assert host.network(local=True, rootless=True, offline=True) == "none"
    assert host.network(local=False, rootless=True) is None


def test_proxies_and_switches_of_apt_reach_a_build_and_paths_of_this_machine_do_not() -> None:
    host = settings_of(
        {},
        apt={
            "Acquire::http::Proxy": "http://proxy.test:3142",
            "Acquire::http::Proxy::mirror.test": "DIRECT",
            "Acquire::https::CaInfo": "/etc/inner.crt",
            "Acquire::http::Proxy-Auto-Detect": "/usr/bin/find-proxy",
            "Acquire::Check-Valid-Until": "false",
            "APT::Architecture": "amd64",
            "Acquire::Retries": "",
        },
    )

    assert host.files()["host/apt.conf"].decode().splitlines() == [
        'Acquire::Check-Valid-Until "false";',
        'Acquire::http::Proxy "http://proxy.test:3142";',
        'Acquire::http::Proxy::mirror.test "DIRECT";',
    ]


# --- secrets --------------------------------------------------------------------------------------


def test_passwords_of_the_settings_and_users_of_any_address_are_taken_out_of_texts() -> None:
    host = settings_of(
        {
            "UV_INDEX_URL": "https://me:s%40cret@example.test/simple",
            "UV_DEFAULT_INDEX": "inner=https://me:1nner@inner.test/simple",
            "HTTPS_PROXY": "http://proxy:pr0xy@proxy.test",
        }
    )

    redacted = host.redact(
        "from https://me:s%40cret@example.test/simple with s@cret, 1nner, pr0xy "
        "and http://token@other.test/"
    )

    assert redacted == (
        "from https://***@example.test/simple with ***, ***, *** and http://***@other.test/"
    )


def test_a_user_alone_is_taken_out_of_texts_also_with_characters_that_are_not_coded() -> None:
    unreadable = "https://to/S3CRET@host.example/simple"
    host = hosting.HostSettings(index={"UV_DEFAULT_INDEX": unreadable})

    redacted = host.redact(f"invalid value '{unreadable}', and https://to@S3CRET@other.test/")

    assert redacted == "invalid value '***', and https://***@other.test/"


@pytest.mark.parametrize(
    "password", ["pa/S3CRET", "pa#S3CRET", "pa?S3CRET", "p@S3CRET", "p S3CRET"]
)
def test_a_password_with_a_special_character_that_is_not_coded_is_taken_out_of_texts(
    password: str,
) -> None:
    address = f"http://user:{password}@host.example/simple"
    host = hosting.HostSettings(index={"UV_DEFAULT_INDEX": address})

    redacted = host.redact(f"invalid value '{address}': {quote(password, safe='')} or {password}")

    assert "S3CRET" not in redacted
    assert redacted.endswith("': *** or ***")


def test_an_empty_password_leaves_the_text_as_it_is() -> None:
    host = hosting.HostSettings(index={"UV_INDEX_INTERNAL_PASSWORD": ""})

    assert host.redact("no wheel of torch") == "no wheel of torch"


def test_the_login_of_a_private_index_reaches_no_build_step() -> None:
    host = settings_of(
        {
            # uv would take the login of an index with this name from the same variables.
            "UV_DEFAULT_INDEX": "acme=https://mirror.test/simple",
            "UV_INDEX_ACME_USERNAME": "me",
            "UV_INDEX_ACME_PASSWORD": "of the private index",
        }
    )

    exported = host.files()["host/env"].decode()
    assert exported == "export UV_DEFAULT_INDEX=https://mirror.test/simple\n"
