"""Comparison of an existing destination with the result that a job would have."""

from __future__ import annotations

import errno
from dataclasses import replace

from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.jobs.idempotence.key_comparison import NewKeys
from modcrypt.jobs.idempotence.shapes import (
    Difference,
    ExpectedMasks,
    Shape,
    find_plaintext_difference,
    marks_of,
    read_decrypted_shape,
    read_plain_shape,
)
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.properties import Encryption, FileDecryptionProperties
from modcrypt.parquet.rewrite.changes import Change
from modcrypt.parquet.rewrite.file_rewrite import Choice, restore_properties


def find_difference(
    source: Place, target: Place, *, encryption: Encryption | None,
    decryption: FileDecryptionProperties | None, change: Change | None, in_place: bool,
) -> Difference | None:  # fmt: skip
    """Return how an existing destination differs from a job's result; None if it does not.

    `encryption` is None for plaintext or, with a change, for the file's own; `decryption` is None
    for a plaintext source. Raise ModcryptError, ValueError or OSError if the source can't be opened
    or changed this way.
    """
    new = None if encryption is None else NewKeys(encryption)
    if in_place:
        masked = None if change is None else ExpectedMasks(change)
        if new is not None:
            return new.find_difference(target, masked)
        if masked is not None and decryption is not None:
            with open_source_at(target) as opened:
                why = masked.find_open_difference(OpenFile(opened, _strict(decryption)))
            return None if why is None else Difference(why)
        return find_plaintext_difference(target, None)
    _check_apart(source, target)
    before, after = source.modified(), target.modified()
    if before is not None and after is not None and after < before:
        return Difference("it is older than its source")
    if change is not None and decryption is not None:
        shape, new = _plan_change(source, target, decryption, change, new)
    elif decryption is not None:
        shape = read_decrypted_shape(source, decryption)
    else:
        shape = read_plain_shape(source)
    if new is None:
        return find_plaintext_difference(target, shape)
    return new.find_difference(target, shape)


def _check_apart(source: Place, destination: Place) -> None:
    """Raise OSError if a link makes a destination the same file as its source."""
    if source.resolve() == destination.resolve():
        raise OSError(
            errno.EINVAL,
            "destination is a link to the source; choose another destination",
            destination.address,
        )


def _plan_change(
    place: Place, destination: Place, decryption: FileDecryptionProperties, change: Change,
    new: NewKeys | None,
) -> tuple[Shape, NewKeys]:  # fmt: skip
    """Return the shape and the keys of a file after a change; its own keys without new ones."""
    with open_source_at(place) as source:
        file = OpenFile(source, _strict(decryption))
        choice = Choice(file, change)
        if new is None:
            new = NewKeys(restore_properties(file, choice.plan, destination))
    shown = choice.plan.footer_leaves
    unchanged = [c for c in shown if c not in choice.masks and c not in choice.nulls]
    leaves = [file.leaves[c] for c in shown]
    marks = marks_of(file, choice.plan, unchanged)
    return Shape(file.metadata.num_rows, leaves, marks, choice.note), new


def _strict(decryption: FileDecryptionProperties) -> FileDecryptionProperties:
    return replace(decryption, check_footer_integrity=True)
