"""The AAD prefixes of a dataset's files: which part each file is, and that none is missing.

A prefix made from a template such as `employees_23May2018.part{i}` tells which file of the dataset
a file is, and nobody without the footer key can change it (PME 4.4.1). So a file that was left
out, put in twice or taken from another dataset shows; and an older version of the same part where
the template names the version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from modcrypt.errors import AadPrefixError, FooterSignatureError, TagMismatchError
from modcrypt.io.storage import Source
from modcrypt.parquet.crypto.file_identity import FileIdentity
from modcrypt.parquet.crypto.footer import open_footer, stored_prefix
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, bound
from modcrypt.parquet.format.framing import read_tail

__all__ = ["PrefixTemplate", "check_parts", "identify_part", "part_faults"]


class PrefixTemplate:
    """AAD prefixes, or names, that differ in a number, `{i}` in the template.

    Raises:
        ValueError: the template does not have exactly one `{i}`.
    """

    def __init__(self, template: str) -> None:
        before, found, after = template.partition("{i}")
        if not found or "{i}" in after:
            raise ValueError('a template has one "{i}", as in "people.part{i}"')
        self._before, self._after = before.encode(), after.encode()

    def prefix(self, part: int) -> bytes:
        """Give the prefix of one part."""
        return b"%b%d%b" % (self._before, part, self._after)

    def part(self, prefix: bytes) -> int | None:
        """Give the number of the part with this prefix, None where no part has it."""
        if not (prefix.startswith(self._before) and prefix.endswith(self._after)):
            return None
        digits = prefix[len(self._before) : len(prefix) - len(self._after)]
        # One spelling for each number: no leading zeros, no sign, ASCII alone.
        return int(digits) if re.fullmatch(rb"0|[1-9][0-9]{0,9}", digits) else None


def identify_part(
    source: Source,
    properties: FileDecryptionProperties,
    template: PrefixTemplate,
    guesses: Sequence[int],
) -> tuple[int, FileIdentity]:
    """Find out which part a file is: the footer must authenticate with that part's AAD prefix.

    Args:
        guesses: parts to try, in this order, on a file that does not store its prefix.

    Returns:
        The part, and the version of the file that is this part.

    Raises:
        AadPrefixError: it is none of the dataset's parts.
        ModcryptError: as `decrypt_parquet`, for the footer.
    """
    properties = bound(properties, source)
    tail = read_tail(source)
    stored = stored_prefix(tail, source.name)
    if stored is not None:
        part = template.part(stored)
        if part is None:
            raise AadPrefixError(
                f"{source.name}: a foreign file: its AAD prefix {stored[:200]!r} is not of the "
                "template"
            )
        guesses = [part]
    for guess in guesses:
        try:
            demanded = replace(properties, aad_prefix=template.prefix(guess))
            open_footer(tail, demanded, source.name)
        except (TagMismatchError, FooterSignatureError):
            if stored is not None:
                raise
        else:
            return guess, FileIdentity.of_tail(tail, source)
    raise AadPrefixError(
        f"{source.name}: a foreign file, or another key: its footer authenticates with none of "
        f"the {len(guesses)} AAD prefixes of the template"
    )


def check_parts(
    parts: Iterable[tuple[str, int]], expected: int | None, template: PrefixTemplate
) -> None:
    """Check that no part is there twice, and that 0 to `expected` - 1 are there.

    Args:
        parts: path and part of each file.
        expected: number of parts; None where it is not known.

    Raises:
        AadPrefixError: all that is wrong: parts missing, there twice, or too many.
    """
    if faults := part_faults(parts, expected, template):
        raise AadPrefixError("; ".join(faults))


def part_faults(
    parts: Iterable[tuple[str, int]], expected: int | None, template: PrefixTemplate
) -> list[str]:
    """Say what is wrong with a set of parts; arguments as of `check_parts`."""
    paths: dict[int, list[str]] = {}
    for path, part in parts:
        paths.setdefault(part, []).append(path)
    faults = [
        f"{template.prefix(part)!r} is there {len(those)} times: {', '.join(those)}"
        for part, those in sorted(paths.items())
        if len(those) > 1
    ]
    if expected is not None:
        missing = [repr(template.prefix(part)) for part in range(expected) if part not in paths]
        if missing:
            faults.append(f"{len(missing)} of {expected} parts missing: {_listed(missing)}")
        foreign = [
            path for part, those in sorted(paths.items()) if part >= expected for path in those
        ]
        if foreign:
            faults.append(f"foreign files, beyond {expected} parts: {_listed(foreign)}")
    return faults


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
