"""Recognise credentials in texts and by file names; report their kind, never the credentials."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from validate.environment.patterns import first_of

_BY_VARIABLE = "a secret"
"""The kind of what is assigned to a variable whose name says that it is secret."""
_CODE = tuple(
    (
        ".h .hh .hpp .hxx .h++ .c .cc .cpp .cxx .c++ .cu .cuh .tcc .tpp .txx .ipp .inl "
        ".py .pyi .pyx .pxd .js .mjs .cjs .jsx .ts .tsx .pl .pm .rs .go .java .kt .scala .swift "
        ".rb .lua .php .jl .f90"
    ).split()
)
"""Suffixes of programs. There a variable named `token` holds anything, so _BY_VARIABLE is not
looked for."""

_KINDS: Mapping[str, str] = {
    # With the beginning of the key: tables of file types (/usr/share/mime/magic) have only the
    # first line.
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----(?:\\[nr]|[\s\"'+,])+"
    r"(?:[\w-]+:[^\n\\]{0,200}(?:\\[nr]|\n)+\s*){0,9}[A-Za-z0-9+/=]{16}",
    "a Hugging Face token": r"\bhf_[A-Za-z]{30,}\b",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{50,})",
    "a GitLab token": r"\bglpat-[\w-]{20,}",
    "an AWS access key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "a PyPI token": r"\bpypi-AgE[\w-]{50,}",
    "a Slack token": r"\bxox[abprs]-[\w-]{20,}",
    "an OpenAI or Anthropic key": r"\bsk-(?:ant-|proj-)?[\w-]{32,}",
    "a Google API key": r"\bAIza[\w-]{35}\b",
    "a password in an address": r"\b[a-z][a-z0-9+.-]*://[^\s/:@'\"$<{]+:"
    r"(?!\*)[^\s/@'\"$<{]{3,}@[\w.-]+",
    "a password": r"(?i)\blogin\s+\S+\s+password\s+\S{3,}",
    _BY_VARIABLE: r"(?i)\b\w*(?:api_?key|auth_?token|access_?token"
    r"|secret(?:_?access)?(?:_?key)?|passw(?:or)?d"
    r"|(?<!\bpad|\beos|\bbos|\bunk|\bsep|\bcls)(?<!\bmask)_token)"  # words of a tokenizer
    r"[\"']?\s*[=:]\s*[\"']?(?![\"'$<{\s*]|true|false|none|null|file:"
    r"|/[a-z]+/)[\w+/.~-]{8,}",  # a path, as in `-v /etc/passwd:/etc/passwd`
}
"""Kind -> regular expression: what a credential looks like, as its issuers document it."""

_PATTERNS = {kind: re.compile(pattern, re.ASCII) for kind, pattern in _KINDS.items()}
_MARKS = (
    "PRIVATE hf_ ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- AKIA ASIA pypi-AgE xox sk- AIza"
).split()
"""Words of which each text with a credential of a *marked* kind has at least one. Issuers mark
credentials, so that they can be recognised: GitHub's tokens begin with `ghp_`, for example."""
_WORDS_OF_UNMARKED: Mapping[str, tuple[str, ...]] = {
    _BY_VARIABLE: ("api_key", "apikey", "token", "secret", "passw"),
    "a password in an address": ("://",),
    "a password": ("password",),
}
"""Kinds that no issuer marks -> words, in lower case, of which each text with such a credential has
at least one."""
SMALL_BYTES = 128 << 10
"""The most bytes that a text may have to be searched for unmarked kinds, too."""

FILES: Mapping[str, str] = {
    "*/.netrc": "logins",
    "*/_netrc": "logins",
    "*/.git-credentials": "logins",
    "*/.pypirc": "logins",
    "*/.docker/config.json": "registry logins",
    "*/.aws/credentials": "AWS keys",
    "*/.kube/config": "cluster logins",
    "*/.config/gcloud/*": "Google Cloud logins",
    "*/.azure/*": "Azure logins",
    "*/.config/gh/hosts.yml": "a GitHub login",
    "*/.ssh/id_*": "a private key",
    "*/.kaggle/kaggle.json": "a Kaggle key",
    "*/.huggingface/token": "a Hugging Face token",
    "*/huggingface/token": "a Hugging Face token",
    "*/huggingface/stored_tokens": "Hugging Face tokens",
    "/etc/apt/auth.conf*": "package index logins",
    "*/.env": "a project's secrets",
    "/run/secrets/*": "a build's secrets",
}
"""Pattern of file names -> what such a file holds: credentials and nothing else."""
_pattern_of_file = first_of(FILES)


class Credential(NamedTuple):
    """A credential in a text."""

    line: int
    """Its line number, from 1 on."""
    kind: str
    """`a GitHub token`."""


def find_in_text(
    text: str, name: str = "", skipped_kinds: Collection[str] = ()
) -> Iterator[Credential]:
    """Yield line and kind of each credential in a text, one kind after another.

    `name` is the name of the file. In programs, values of variables such as `token` are ignored,
    because they may be anything. `skipped_kinds` are not looked for.
    """
    is_code = _is_code(name)
    lower_text = text.lower()
    has_mark = any(mark in text for mark in _MARKS)
    for kind, pattern in _PATTERNS.items():
        if kind in skipped_kinds or (kind == _BY_VARIABLE and is_code):
            continue

        # To save time, match the regular expression only if the text has a word that goes with this
        # kind. Most kinds share the marks that issuers put into credentials, such as `ghp_`.
        if kind in _WORDS_OF_UNMARKED:
            may_have_kind = any(word in lower_text for word in _WORDS_OF_UNMARKED[kind])
        else:
            may_have_kind = has_mark
        if not may_have_kind:
            continue

        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield Credential(line, kind)


def _is_code(name: str) -> bool:
    """Return whether a file of this name holds a program."""
    folder, _, file = name.rpartition("/")
    # Headers of C++'s own library have no suffix: `include/barrier`.
    is_cpp_header = "include" in folder.split("/") and "." not in file
    return name.endswith(_CODE) or is_cpp_header


def find_in_file(content: bytes, name: str) -> Iterator[Credential]:
    """Yield the credentials in the content of any file.

    Large and binary files are searched only for what its issuer marked as a credential.
    """
    if len(content) <= SMALL_BYTES and b"\0" not in content:
        yield from find_in_text(content.decode("utf-8", "replace"), name)
    elif any(mark.encode() in content for mark in _MARKS):
        text = content.decode("latin-1")
        yield from find_in_text(text, skipped_kinds=_WORDS_OF_UNMARKED)


def kind_by_name(path: str) -> str:
    """Return what a file of this name holds, such as `AWS keys`; empty if no credentials."""
    pattern = _pattern_of_file(path)
    return FILES[pattern] if pattern else ""
