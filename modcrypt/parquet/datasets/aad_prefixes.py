"""AAD prefixes of a dataset's files: identify each file's part, and check that none is missing.

A prefix made from a template such as `employees_23May2018.part{i}` states which part of the dataset
a file is, and nobody without the footer key can change it (PME 4.4.1). This detects a file that is
missing, duplicated or taken from another dataset; and, if the template contains the version of the
dataset, an older version of the same part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from modcrypt.errors import AadPrefixError, FooterSignatureError, TagMismatchError, list_names
from modcrypt.io.sources import Source, open_source
from modcrypt.io.store_errors import name_path_in_errors
from modcrypt.io.threads import in_threads, usable_cores
from modcrypt.parquet.crypto.crypto_fields import stored_prefix
from modcrypt.parquet.crypto.footer_opening import open_footer
from modcrypt.parquet.crypto.properties import (
    FileDecryptionProperties,
    FileEncryptionProperties,
    bind_to_file,
)
from modcrypt.parquet.format.framing import FileIdentity, read_tail

MAX_THREADS = 8
"""Maximum number of files of a dataset that are read at once."""


class PrefixTemplate:
    """A template of AAD prefixes, or of names, with `{i}` in the place of a number.

    Raise ValueError if the template does not have exactly one `{i}`.
    """

    def __init__(self, template: str) -> None:
        before, placeholder, after = template.partition("{i}")
        if not placeholder or "{i}" in after:
            raise ValueError('a template must have exactly one "{i}", as in "people.part{i}"')
        self._before, self._after = before.encode(), after.encode()

    def prefix(self, part: int) -> bytes:
        """Return the prefix of one part."""
        return b"%b%d%b" % (self._before, part, self._after)

    def part(self, prefix: bytes) -> int | None:
        """Return the number of the part with this prefix; None if no part has it."""
        if not (prefix.startswith(self._before) and prefix.endswith(self._after)):
            return None
        digits = prefix[len(self._before) : len(prefix) - len(self._after)]
        # Each number has one form: ASCII digits without sign and leading zeros.
        return int(digits) if re.fullmatch(rb"0|[1-9][0-9]{0,9}", digits) else None


def check_no_prefix(
    template: object, properties: FileDecryptionProperties | FileEncryptionProperties
) -> None:
    """Raise ValueError if the properties have an AAD prefix although there is a template of it."""
    demands = properties.aad_prefix, getattr(properties, "aad_prefix_verifier", None)
    if template is not None and demands != (None, None):
        raise ValueError("pass aad_prefix_template, or an AAD prefix or verifier, not both")


def check_expected_parts(template: str | None, expected: int | None) -> None:
    """Raise ValueError unless the number of parts is None, or positive with a template."""
    if expected is None:
        return
    if template is None:
        raise ValueError("expected_parts needs aad_prefix_template; pass both")
    if not isinstance(expected, int) or expected < 1:
        raise ValueError("expected_parts must be a number, at least 1")


def find_parts(
    files: Sequence[tuple[str, FileDecryptionProperties]],
    filesystem: Any,
    template: str,
    expected: int | None,
) -> dict[str, tuple[bytes, FileIdentity]]:
    """Return the AAD prefix that each file of a dataset must have, and the version that has it.

    Raises:
        AadPrefixError: Parts are missing or repeated, or files are foreign.
        ValueError: The template is invalid, or properties demand another prefix, or no footer
            checks.
    """
    prefixes = PrefixTemplate(template)

    def identify(number: int) -> tuple[int, FileIdentity]:
        path, properties = files[number]
        check_no_prefix(template, properties)
        if not properties.check_footer_integrity:
            raise ValueError(
                "aad_prefix_template requires footer checks; pass check_footer_integrity=True"
            )
        with name_path_in_errors(path), open_source(path, filesystem=filesystem) as source:
            return identify_part(source, properties, prefixes, number, len(files), expected)

    threads = min(usable_cores(), MAX_THREADS)
    numbers = range(len(files))
    identified = list(in_threads(identify, numbers, threads, "modcrypt-part"))
    found = [(path, *part) for (path, _), part in zip(files, identified, strict=True)]
    if faults := find_part_faults([(path, part) for path, part, _ in found], expected, prefixes):
        raise AadPrefixError("; ".join(faults))
    return {path: (prefixes.prefix(part), version) for path, part, version in found}


def identify_part(
    source: Source, properties: FileDecryptionProperties, template: PrefixTemplate, number: int,
    files: int, expected: int | None,
) -> tuple[int, FileIdentity]:  # fmt: skip
    """Find which part a file is: its footer must authenticate with that part's AAD prefix.

    Return the part and the version of the file that was identified. A file that does not store its
    prefix is tried as the parts that its name contains, as its `number` (its position among the
    files), and as all others. `expected` is the number of parts; None if unknown.
    """
    properties = bind_to_file(properties, source)
    tail = read_tail(source)
    if (stored := stored_prefix(tail, source.name)) is not None:
        if (part := template.part(stored)) is None:
            raise foreign_file_error(source.name, stored)
        guesses = [part]
    else:
        likely = (*find_numbers(source.name), number)
        known = [part for part in likely if expected is None or part < expected]
        guesses = list(dict.fromkeys((*known, *range(files if expected is None else expected))))
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
        f"{source.name}: foreign file or wrong key: its footer authenticates with none of "
        f"the {len(guesses)} AAD prefixes of the template"
    )


def foreign_file_error(name: str, prefix: bytes) -> AadPrefixError:
    """Return the error for a file whose stored AAD prefix is not one of the template."""
    return AadPrefixError(
        f"{name}: foreign file: its AAD prefix {prefix[:200]!r} does not match the template"
    )


def find_numbers(path: str) -> list[int]:
    """Return the numbers in the name of a file, one of which may be that of its part."""
    return [int(digits) for digits in re.findall(r"[0-9]{1,9}", path.rsplit("/", 1)[-1])]


def find_part_faults(
    parts: Iterable[tuple[str, int]], expected: int | None, template: PrefixTemplate
) -> list[str]:
    """Return the faults of parts: repeated ones, and others than 0 to `expected` - 1, if known."""
    paths: dict[int, list[str]] = {}
    for path, part in parts:
        paths.setdefault(part, []).append(path)
    faults = [
        f"{template.prefix(part)!r} occurs {len(files)} times: {', '.join(files)}"
        for part, files in sorted(paths.items())
        if len(files) > 1
    ]
    if expected is not None:
        missing = [repr(template.prefix(part)) for part in range(expected) if part not in paths]
        if missing:
            faults.append(f"{len(missing)} of {expected} parts are missing: {list_names(missing)}")
        foreign = [
            path for part, files in sorted(paths.items()) if part >= expected for path in files
        ]
        if foreign:
            faults.append(f"foreign files, beyond {expected} parts: {list_names(foreign)}")
    return faults
