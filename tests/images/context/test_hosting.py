"""The host's network settings: what a build gets of them, and what it never gets."""

import subprocess
from pathlib import Path

import pytest

from images.context.hosting import HostSettings

PEM = b"-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"


def settings(
    env: dict[str, str], files: dict[str, bytes] | None = None, apt: dict[str, str] | None = None
) -> HostSettings:
    return HostSettings.of(env, (files or {}).get, apt)


def sourced(host: HostSettings, folder: Path) -> dict[str, str]:
    """What a POSIX shell holds after sourcing host/env."""
    (folder / "env").write_bytes(host.files()["host/env"])
    done = subprocess.run(
        ["/bin/sh", "-ec", '. "$1"; env -0', "sh", str(folder / "env")], env={}, capture_output=True, check=True
    )
    pairs = (entry.partition("=")[::2] for entry in done.stdout.decode().split("\0") if entry)
    return {name: value for name, value in pairs if name not in ("PWD", "_", "SHLVL", "OLDPWD")}


def test_no_settings_still_make_a_file_to_source(tmp_path: Path) -> None:
    host = settings({})
    assert host.files() == {"host/env": b""}
    assert sourced(host, tmp_path) == {}
    assert host.network(local=True) is None


def test_the_first_bundle_that_is_one_is_taken() -> None:
    host = settings(
        {"PIP_CERT": "/gone", "SSL_CERT_FILE": "/folder", "REQUESTS_CA_BUNDLE": "/ca"}, {"/folder": b"x", "/ca": PEM}
    )
    assert host.ca == PEM
    assert [warning.split()[0] for warning in host.warnings] == ["PIP_CERT", "SSL_CERT_FILE"]


def test_a_bundle_reaches_uv_pip_curl_git_and_apt(tmp_path: Path) -> None:
    host = settings({"SSL_CERT_FILE": "/ca"}, {"/ca": PEM})
    files = host.files()
    assert files["host/ca.crt"] == PEM
    assert files["host/apt.conf"] == b'Acquire::https::CaInfo "/run/host/ca.crt";\n'
    assert sourced(host, tmp_path) == {
        "APT_CONFIG": "/run/host/apt.conf",
        **dict.fromkeys(
            ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO"), "/run/host/ca.crt"
        ),
    }


def test_values_survive_the_shell(tmp_path: Path) -> None:
    address = "https://me:p'a$(id)\"`x`\\;w@example.test/simple"
    host = settings({"UV_DEFAULT_INDEX": address, "https_proxy": "http://a b;c"})
    assert sourced(host, tmp_path) == {
        "UV_DEFAULT_INDEX": address,
        "https_proxy": "http://a b;c",
        "HTTPS_PROXY": "http://a b;c",
    }


def test_pips_index_serves_uv_unless_uv_has_its_own() -> None:
    assert settings({"PIP_INDEX_URL": "https://a.test/simple"}).index["UV_DEFAULT_INDEX"] == "https://a.test/simple"
    both = settings({"PIP_INDEX_URL": "https://a.test/simple", "UV_INDEX_URL": "https://b.test/simple"})
    assert "UV_DEFAULT_INDEX" not in both.index


@pytest.mark.parametrize("name", ["PIP_FIND_LINKS", "UV_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_CACHE_DIR", "HOME"])
def test_other_places_to_look_and_other_variables_are_left_out(name: str) -> None:
    assert settings({name: "https://x.test/"}).index == {}


def test_an_index_in_files_of_this_machine_is_left_out_and_said() -> None:
    host = settings({"UV_DEFAULT_INDEX": "file:///opt/simple", "PIP_INDEX_URL": "/opt/simple"})
    assert host.index == {}
    assert [warning.split()[0] for warning in host.warnings] == ["PIP_INDEX_URL", "UV_DEFAULT_INDEX"]


@pytest.mark.parametrize("name", ["UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"])
def test_a_further_index_is_left_out_and_said(name: str) -> None:
    host = settings({name: "https://me:secret@inner.test/simple"})
    assert host.index == {}
    (warning,) = host.warnings
    assert warning.startswith(name)
    assert "secret" not in warning


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", "proxy.localhost"])
def test_an_address_on_this_machine_is_said(host: str) -> None:
    found = settings({"HTTP_PROXY": f"http://me:secret@{host}:3128"})
    assert found.network(local=True) == "host"
    assert "http_proxy" in found.warnings[0]
    assert "secret" not in found.warnings[0]


def test_an_index_on_this_machine_is_seen_too() -> None:
    assert settings({"UV_DEFAULT_INDEX": "http://localhost:8080/simple"}).network(local=True) == "host"
    assert settings({"UV_DEFAULT_INDEX": "https://inner.test/simple"}).network(local=True) is None


def test_apts_proxies_and_switches_pass_but_no_paths_of_this_machine() -> None:
    host = settings(
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


def test_credentials_are_taken_out_of_texts() -> None:
    host = settings(
        {
            "UV_DEFAULT_INDEX": "https://me:s%40cret@example.test/simple",
            "UV_INDEX_INNER_PASSWORD": "hush",
            "HTTPS_PROXY": "http://proxy:pr0xy@proxy.test",
        }
    )
    text = "from https://me:s%40cret@example.test/simple with s@cret, hush, pr0xy and http://token@other.test/"
    assert host.redact(text) == "from https://***@example.test/simple with ***, ***, *** and http://***@other.test/"
