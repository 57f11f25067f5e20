"""Recognises credentials in text and in file names. Gives back what kind they are, never the credentials themselves."""

import re
from collections.abc import Collection, Iterator, Mapping

from validate.environment.patterns import first_of

_BY_VARIABLE = "a secret"
_CODE = tuple(".h .hpp .hxx .c .cc .cpp .cu .cuh .py .pyi .js .ts .pl .pm .rs .go".split())
"""In programs a variable named `token` holds anything."""

_KINDS: Mapping[str, str] = {
    # With its beginning: tables of file types (/usr/share/mime/magic) have the first line alone.
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
    "a password in an address": r"\b[a-z][a-z0-9+.-]*://[^\s/:@'\"$<{]+:(?!\*)[^\s/@'\"$<{]{3,}@[\w.-]+",
    "a password": r"(?i)\blogin\s+\S+\s+password\s+\S{3,}",
    _BY_VARIABLE: r"(?i)\b\w*(?:api_?key|auth_?token|access_?token|secret(?:_?access)?(?:_?key)?|passw(?:or)?d"
    r"|(?<!\bpad|\beos|\bbos|\bunk|\bsep|\bcls)(?<!\bmask)_token)"  # a tokenizer's are words
    r"[\"']?\s*[=:]\s*[\"']?(?![\"'$<{\s*]|true|false|none|null|file:)[\w+/.~-]{8,}",
}
"""What a credential looks like, as its issuers document it; the last is a variable whose name says what it holds."""

_PATTERNS = {kind: re.compile(pattern, re.ASCII) for kind, pattern in _KINDS.items()}
_MARKS = "PRIVATE hf_ ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- AKIA ASIA pypi-AgE xox sk- AIza".split()
_GUESSED = {
    _BY_VARIABLE: ("api_key", "apikey", "token", "secret", "passw"),
    "a password in an address": ("://",),
    "a password": ("password",),
}
"""Kinds that no issuer marks, and words of which each text with one has one: to look for these takes far less time."""
SMALL = 128 << 10
"""Bytes of a text that is looked at for these, too."""

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
"""Files that hold credentials and nothing else."""
_file = first_of(FILES)


def in_text(text: str, name: str = "", without: Collection[str] = ()) -> Iterator[tuple[int, str]]:
    """(line number, kind) of each credential in the text of a file of this name. `without`: kinds not looked for."""
    folder, _, file = name.rpartition("/")
    # Headers of C++'s own library have no suffix: `include/barrier`.
    is_code = name.endswith(_CODE) or ("include" in folder.split("/") and "." not in file)
    small, is_marked = text.lower(), any(mark in text for mark in _MARKS)
    for kind, pattern in _PATTERNS.items():
        may_be = any(word in small for word in _GUESSED[kind]) if kind in _GUESSED else is_marked
        if kind in without or not may_be or (kind == _BY_VARIABLE and is_code):
            continue
        for found in pattern.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, kind


def of_file(content: bytes, name: str) -> Iterator[tuple[int, str]]:
    """The same of any file; of large texts and programs, what its issuer marked as a credential alone."""
    if len(content) <= SMALL and b"\0" not in content:
        yield from in_text(content.decode("utf-8", "replace"), name)
    elif any(mark.encode() in content for mark in _MARKS):
        yield from in_text(content.decode("latin-1"), without=_GUESSED)


def by_name(path: str) -> str:
    """What a file of this name holds; empty for all others."""
    return FILES.get(_file(path) or "", "")
