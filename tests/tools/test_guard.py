"""Rows that a refresh must not lose, compared in plain dicts and in a real git repository."""

import subprocess
from pathlib import Path

import pytest

from images.errors import UserError
from tools import guard

YAML = "images/data/facts.yaml"
TORCH = "locks/cu126-torch27/torch.txt"
LIGHT = "locks/cu126-torch27/light.txt"
MONTH = "results/nightly/2026-11.jsonl"
BASES = "locks/bases.yaml"
FACTS = b"""\
collected: '2026-11-20'
torch:
  "2.7.1":
    variants: {"12.6": {archs: ["7.5", "9.0"]}}
  "2.8.0":
    variants: {"12.8": {archs: ["9.0"]}}
prebuilt:
  - {version: "2.8.3", archs: ["9.0"]}
  - {version: "2.8.3", archs: ["9.0"]}
"""
LOCK = b"# made\ntorch==2.7.1 \\\n    --hash=sha256:0\ntriton==3.3.1 \\\n    --hash=sha256:1\n"
LINES = b'{"kind":"leg","n":1}\n{"kind":"leg","n":2}\n'
FILES = {
    YAML: FACTS,
    BASES: b"debian:bookworm-slim: sha256:0\n",
    TORCH: LOCK,
    LIGHT: b"# nothing\n",
    MONTH: LINES,
}
WITHOUT_AN_ARCH = FACTS.replace(b'["7.5", "9.0"]', b'["9.0"]')


def lost_rows(after: dict[str, bytes]) -> list[tuple[str, str]]:
    """Return (table, row) of each row that FILES have and `after` has not."""
    pairs = []
    for table, rows in guard.lost(FILES, after).items():
        pairs += [(table, row) for row in rows]
    return pairs


def test_nothing_is_lost_where_rows_are_added_or_values_change() -> None:
    with_another_arch = FACTS.replace(b'["7.5", "9.0"]', b'["7.5", "9.0", "12.0"]')
    grown = {
        **FILES,
        YAML: with_another_arch.replace(b"2026-11-20", b"2026-11-21"),
        BASES: b"debian:bookworm-slim: sha256:1\n",
        TORCH: LOCK.replace(b"3.3.1", b"3.3.2").replace(b"sha256:1", b"sha256:2"),
        MONTH: LINES + b'{"kind":"leg","n":3}\n',
        "locks/cu128-torch28/torch.txt": LOCK,
    }

    assert lost_rows(grown) == []


@pytest.mark.parametrize(
    ("path", "content", "lost"),
    [
        (YAML, FACTS.replace(b'  "2.8.0":', b'  "2.7.2":'), (f"{YAML} torch", "2.8.0")),
        (YAML, WITHOUT_AN_ARCH, (f"{YAML} torch", "2.7.1/variants/12.6/archs/7.5")),
        (YAML, b"collected: '2026-11-20'\n", (f"{YAML} torch", "all of it")),
        (
            YAML,
            FACTS.removesuffix(b'  - {version: "2.8.3", archs: ["9.0"]}\n'),
            (f"{YAML} prebuilt", "row 2"),
        ),
        (
            YAML,
            FACTS.replace(b'archs: ["9.0"]}\n', b"archs: []}\n"),
            (f"{YAML} prebuilt", "archs/9.0"),
        ),
        (BASES, b"", (f"{BASES} debian:bookworm-slim", "all of it")),
        (TORCH, b"# nothing\n", (TORCH, "all of it")),
        (MONTH, LINES.replace(b'"n":1', b'"n":9'), (MONTH, 'line 1: {"kind":"leg","n":1}')),
    ],
    ids=[
        "a key",
        "an item of a list",
        "a section",
        "a row without a name",
        "an item in a row without a name",
        "a base",
        "all packages of a lock",
        "a line of results",
    ],
)
def test_a_lost_row_is_named(path: str, content: bytes, lost: tuple[str, str]) -> None:
    assert lost in lost_rows({**FILES, path: content})


def without(path: str) -> dict[str, bytes]:
    """Return all files but one."""
    return {other: content for other, content in FILES.items() if other != path}


def test_a_lost_file_is_named_unless_it_names_nothing() -> None:
    for path in (YAML, TORCH, MONTH):
        assert any(table.startswith(path) for table, _ in lost_rows(without(path)))
    assert lost_rows(without(LIGHT)) == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a git repository in which FILES are committed."""
    for path, content in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    author = ["-c", "user.name=x", "-c", "user.email=x@x.test"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_a_checkout_that_lost_nothing_is_accepted(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guard.main(root=checkout)

    assert capsys.readouterr().out == "22 rows before, 22 now, none lost\n"


def test_a_checkout_that_lost_a_row_is_refused_unless_it_is_allowed(checkout: Path) -> None:
    (checkout / YAML).write_bytes(WITHOUT_AN_ARCH)

    lost = r"facts.yaml torch: this table has lost 2.7.1/variants/12.6/archs/7.5"
    with pytest.raises(UserError, match=lost) as refusal:
        guard.main(root=checkout)
    assert refusal.value.code == 1
    guard.main(root=checkout, allow=[f"{YAML} torch"])


def test_a_commit_that_git_does_not_know_is_named(checkout: Path) -> None:
    with pytest.raises(UserError, match="--before nothing"):
        guard.at_revision(checkout, "nothing")
