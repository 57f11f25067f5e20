"""The host's network settings: what a build gets of them, and what it never gets."""

import subprocess
from pathlib import Path

import pytest

from images.context import hosting
from images.context.hosting import HostSettings
from images.context.hosting import settings_of as settings

PEM = b"-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"


def sourced(host: HostSettings, folder: Path) -> dict[str, str]:
    """What a POSIX shell holds after sourcing host/env."""
    (folder / "env").write_bytes(host.files()["host/env"])
    done = subprocess.run(
        ["/bin/sh", "-ec", '. "$1"; env -0', "sh", str(folder / "env")],
        env={},
        capture_output=True,
        check=True,
    )
    pairs = (entry.partition("=")[::2] for entry in done.stdout.decode().split("\0") if entry)
    return {name: value for name, value in pairs if name not in ("PWD", "_", "SHLVL", "OLDPWD")}


def test_the_first_bundle_that_is_one_is_taken(tmp_path: Path) -> None:
    (tmp_path / "ca").write_bytes(PEM)
    bundles = {
        "PIP_CERT": "/gone",
        "SSL_CERT_FILE": str(tmp_path),
        "REQUESTS_CA_BUNDLE": f"{tmp_path}/ca",
    }
    host = settings(bundles)
    assert host.ca == PEM
    assert [warning.split()[0] for warning in host.warnings] == ["PIP_CERT", "SSL_CERT_FILE"]


def test_a_bundle_reaches_uv_pip_curl_git_and_apt(tmp_path: Path) -> None:
    (tmp_path / "ca").write_bytes(PEM)
    host = settings({"SSL_CERT_FILE": f"{tmp_path}/ca"})
    files = host.files()
    assert files["host/ca.crt"] == PEM
    assert files["host/apt.conf"] == b'Acquire::https::CaInfo "/run/host/ca.crt";\n'
    assert sourced(host, tmp_path) == {
        "APT_CONFIG": "/run/host/apt.conf",
        **dict.fromkeys(
            ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO"),
            "/run/host/ca.crt",
        ),
    }


def test_values_survive_the_shell_and_no_settings_still_make_a_file_to_source(
    tmp_path: Path,
) -> None:
    bare = settings({})
    assert (
        bare.files() == {"host/env": b""}
        and sourced(bare, tmp_path) == {}
        and bare.network(local=True) is None
    )
    address = "https://me:p'a$(id)\"`x`\\;w@example.test/simple"
    host = settings({"UV_DEFAULT_INDEX": address, "https_proxy": "http://a b;c"})
    assert sourced(host, tmp_path) == {
        "UV_DEFAULT_INDEX": address,
        "https_proxy": "http://a b;c",
        "HTTPS_PROXY": "http://a b;c",
    }


def test_pips_index_serves_uv_unless_uv_has_its_own() -> None:
    assert (
        settings({"PIP_INDEX_URL": "https://a.test/simple"}).index["UV_DEFAULT_INDEX"]
        == "https://a.test/simple"
    )
    both = settings(
        {"PIP_INDEX_URL": "https://a.test/simple", "UV_INDEX_URL": "https://b.test/simple"}
    )
    assert "UV_DEFAULT_INDEX" not in both.index


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (
            {"UV_DEFAULT_INDEX": "file:///o", "PIP_INDEX_URL": "/opt/simple"},
            ["PIP_INDEX_URL", "UV_DEFAULT_INDEX"],
        ),
        *(
            ({name: "https://me:secret@inner.test/simple"}, [name])
            for name in hosting._FURTHER_INDEXES
        ),
        *(
            ({name: "https://x.test/"}, [])
            for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS", "UV_CACHE_DIR", "HOME")
        ),
    ],
)
def test_a_further_index_and_one_in_files_of_the_machine_are_left_out(
    env: dict[str, str], said: list[str]
) -> None:
    found = settings(env)
    assert found.index == {} and [warning.split()[0] for warning in found.warnings] == said
    assert not any("secret" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", "proxy.localhost"]
)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "UV_DEFAULT_INDEX"])
def test_an_address_on_this_machine_is_said(name: str, host: str) -> None:
    found = settings({name: f"http://me:secret@{host}:3128"})
    assert found.network(local=True) == "host"
    assert name.lower() in found.warnings[0].lower()
    assert "secret" not in found.warnings[0]


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
    assert (
        host.redact(text)
        == "from https://***@example.test/simple with ***, ***, *** and http://***@other.test/"
    )
