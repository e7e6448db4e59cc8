"""Commands of a declaration, beyond names of data sets and master keys, and its included files.

A declaration that is found, not named, may come from anyone whose folder the user cloned or
unpacked. Its commands say which code runs, which servers are asked, who can read, and which files
outside its folder change; `trust` decides whether they count.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from modcrypt.errors import MAX_NAME, KeyMaterialError, printable
from modcrypt.io.addresses import is_url
from modcrypt.io.private_files import read_unalterable
from modcrypt.kms.recipients.public_lines import MAX_PUBLIC_FILE, parse_lines
from modcrypt.kms.recipients.recipient import PREFIX, Recipient
from modcrypt.kms.signing.signing_keys import PREFIX as WRITER_PREFIX
from modcrypt.kms.signing.signing_keys import VerifyingKey
from modcrypt.lake.declarations.declaration_faults import MemberPath

_SECRETS = re.compile(
    r"(?<=//)[^/?#@]*@|(?<=[?&;])(pass\w*|pin[\w-]*|token|secret)=(?!env:|file:)[^&;#]*"
)
"""Parts of a URI in which someone may have put a secret by mistake."""

P = TypeVar("P")


MAX_PATH = 4096
"""Length of the longest path that Linux opens, in bytes."""


@dataclass(slots=True)
class Inclusions:
    """The commands of a declaration, and the contents of the files that it includes."""

    folder: Path  # folder of the declaration
    # Whether files outside this folder are opened. Looking for a file can already contact a server,
    # such as that of a network share.
    reads_outside: bool = True
    commands: list[str] = field(default_factory=list)  # commands found so far, as `MEMBER = VALUE`
    # Contents of the included files, by path, in the order of their first use.
    contents: dict[Path, bytes] = field(default_factory=dict)

    def note(self, member: MemberPath, value: object) -> None:
        """Note a command: a member that only a trusted declaration may have."""
        shown = printable(_SECRETS.sub("(hidden)", str(value)), 2 * MAX_NAME)
        self.commands.append(f"{printable('.'.join(member), MAX_NAME)} = {shown}")

    def note_all(
        self, member: MemberPath, given: Mapping[str, object], *, but: Collection[str]
    ) -> None:
        """Note all members of a table as commands, except those that need no trust."""
        for name, value in given.items():
            if name not in but:
                self.note((*member, name), value)

    def place(self, member: MemberPath, location: str) -> str:
        """Return the path or URL of a location; one outside the folder is a command."""
        if is_url(location):
            self.note(member, location)
            return location
        path = self.folder / os.path.expanduser(location)
        if not self._has(path):
            self.note(member, path)
        return str(path)

    def read(self, member: MemberPath, name: str, limit: int) -> bytes:
        """Return up to `limit` bytes of an included file; one outside the folder is a command.

        Raises:
            ValueError: It is not a regular file, or outside the folder and files there are not
                opened.
            KeyRetrievalError: Another user may change the file, whatever was said about it.
            OSError: The file cannot be read.
        """
        path = self.folder / os.path.expanduser(name)
        if path not in self.contents:
            if not self._has(path):
                self.note(member, path)
                if not self.reads_outside:
                    raise ValueError(f"{printable(name, MAX_NAME)} is outside the folder")
            if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
                raise ValueError(f"{printable(name, MAX_NAME)} is not a regular file")
            self.contents[path] = read_unalterable(path, limit)
        return self.contents[path]

    def recipients(self, member: MemberPath, text: str) -> tuple[Recipient, ...]:
        """Return the recipients of a line or file.

        Raise ValueError if a line is malformed, or as `read`; and OSError if the file cannot be
        read.
        """
        if text.startswith(f"{PREFIX}:"):
            return (Recipient.parse(text),)
        return tuple(self._read_lines(member, text, Recipient.parse, "recipients"))

    def writers(self, member: MemberPath, texts: Iterable[str]) -> tuple[str, ...]:
        """Return the lines of verifying keys, given as lines or files.

        Raise ValueError if a key is malformed, or as `read`; and OSError if a file cannot be read.
        """
        return tuple(str(self._writer(member, text)) for text in texts)

    def _writer(self, member: MemberPath, text: str) -> VerifyingKey:
        if text.startswith(f"{WRITER_PREFIX}:"):
            return VerifyingKey.parse(text)
        found = self._read_lines(member, text, VerifyingKey.parse, "verifying keys")
        if len(found) != 1:
            shown = printable(text, MAX_NAME)
            raise KeyMaterialError(f"{shown} has {len(found)} verifying keys, not one")
        return found[0]

    def _read_lines(
        self, member: MemberPath, name: str, parse: Callable[[str], P], what: str
    ) -> list[P]:
        data = self.read(member, name, MAX_PUBLIC_FILE + 1)
        try:
            return parse_lines(data, parse, what)
        except KeyMaterialError as error:
            raise KeyMaterialError(f"{printable(name, MAX_NAME)}: {error}") from None

    def _has(self, path: Path) -> bool:
        """Return whether a path stays in the folder; a link or `..` on it may lead elsewhere."""
        if len(str(path)) > MAX_PATH:  # it has many folders, and none of them can be opened
            return False
        if ".." in path.parts or not path.is_relative_to(self.folder):
            return False
        below = path.relative_to(self.folder)
        steps = (below, *below.parents)
        return not any(map(os.path.islink, (self.folder / step for step in steps[:-1])))

    def hash(self, text: bytes) -> str:
        """Return the SHA-256 over a declaration's text and all files that it includes, in hex."""
        parts = (text, *self.contents.values())
        return hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in parts)).hexdigest()
