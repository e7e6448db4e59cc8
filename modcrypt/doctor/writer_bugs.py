"""Explain the bugs of writers that a Parquet file has, in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import IO, TYPE_CHECKING, cast

from modcrypt.doctor.machine_checks import Check, Subject
from modcrypt.errors import KeyNotFoundError, ModcryptError, printable
from modcrypt.io.sources import open_source, open_source_at
from modcrypt.keys.lookalikes import show_name
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED, read_tail

if TYPE_CHECKING:
    from modcrypt.io.places import Place
    from modcrypt.io.sources import Source
    from modcrypt.parquet.crypto.properties import FileDecryptionProperties
    from modcrypt.parquet.writers.quirk import FoundQuirk

ABOUT = Subject("writer")


def writer_bugs(place: Place, decryption: FileDecryptionProperties | None) -> Iterator[Check]:
    """Examine a file, plaintext or, with its keys, encrypted, and explain what it has."""
    from modcrypt.parquet.verify.footer_view import view_footer

    name = show_name(place.path)
    try:
        with open_source_at(place) as source:
            is_encrypted = read_tail(source).magic == MAGIC_ENCRYPTED
            if is_encrypted or view_footer(source, None).footer.encrypted:
                yield from _examine_encrypted(name, source, place, decryption)
            else:
                yield from _examine(name, source)
    except OSError as error:
        yield ABOUT.fail(f"{name}: {error.strerror or error}", "check the path")
    except ModcryptError as error:
        yield ABOUT.fail(_name_once(name, str(error)), "read it with another reader")


def _examine_encrypted(
    name: str, source: Source, place: Place, decryption: FileDecryptionProperties | None
) -> Iterator[Check]:
    """Examine an encrypted file, and what other readers see of it after decryption."""
    from modcrypt.parquet.arrow.view import open_parquet
    from modcrypt.parquet.verify.encrypted_quirks import find_encrypted_quirks

    for bug in find_encrypted_quirks(source, decryption):
        yield _explain(name, bug)
    if decryption is None:
        yield ABOUT.hint(f"{name}: encrypted, so its contents were not examined", "pass its keys")
        return
    try:
        as_stored = replace(decryption, subjects=None)  # values are encoded again
        opened = open_parquet(place.path, as_stored, filesystem=place.filesystem)
        with opened as view, open_source(cast("IO[bytes]", view)) as plain:
            yield from _examine(name, plain)
    except KeyNotFoundError as error:
        yield ABOUT.hint(_name_once(name, str(error)), "pass the keys of all columns")


def _examine(name: str, source: Source) -> Iterator[Check]:
    from modcrypt.parquet.writers.detection import find_quirks
    from modcrypt.parquet.writers.plain_view import PlainView

    view = PlainView.of(source)
    writer = printable(view.created_by.decode("utf-8", "replace")) or "a writer without a name"
    if not (found := find_quirks(view)):
        yield ABOUT.ok(f"{name}: written by {writer}; no known bug")
    for bug in found:
        yield _explain(f"{name} ({writer})", bug)


def _explain(subject: str, bug: FoundQuirk) -> Check:
    harmless = bug.harm in ("none", "slow") or not bug.certain
    advice = f"modcrypt {bug.action}".replace("`", "")
    if bug.repair:
        advice += f"; encrypt --repair {bug.repair}"
    return ABOUT.result(
        "hint" if harmless else "warn", f"{subject}: {printable(str(bug))}", advice, bug=bug
    )


def _name_once(name: str, message: str) -> str:
    return message if message.startswith(name) else f"{name}: {message}"
