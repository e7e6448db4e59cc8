"""Add events to the record of evidence: before something changes, and after it."""

from __future__ import annotations

import datetime
import getpass
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modcrypt import __version__
from modcrypt.errors import MAX_NAME, FormatError, ModcryptError, printable
from modcrypt.io.private_files import has_owners
from modcrypt.jobs.failures import describe
from modcrypt.kms.signing.signing_keys import (
    SigningKey,
    VerifyingKey,
    load_signing_key,
    read_verifying_keys,
)
from modcrypt.lake.declarations.declaration import EvidenceDeclaration, LakeDeclaration
from modcrypt.lake.evidence.events import DatasetResult, EvidenceEvent
from modcrypt.lake.evidence.evidence_lines import (
    MAX_LINES,
    MAX_RECORD,
    START,
    fit_results,
    hash_line,
    make_line,
    parse_line,
    record_path,
)
from modcrypt.lake.evidence.linked_records import link_records
from modcrypt.lake.record_file import append_lines, find_signer, mode_beside
from modcrypt.runtime.fork_safety import cached_property

MAX_KEYS = 10
"""Largest number of master keys that a line names."""


@dataclass(frozen=True)
class EvidenceWriter:
    """The writer of the record of a lake; it does nothing if the declaration has no `[evidence]`.

    Args:
        given_key: Key of the caller, which signs if the declaration names none.
    """

    declaration: LakeDeclaration
    given_key: SigningKey | None = None

    @property
    def path(self) -> Path:
        """Path of the record."""
        return record_path(self.declaration.path)

    @cached_property
    def signers(self) -> tuple[VerifyingKey, ...]:
        """Keys one of which must have signed each line; none if lines need no signature."""
        return read_verifying_keys(_declared(self.declaration).signed_by)

    @cached_property
    def signing_key(self) -> SigningKey | None:
        """The key that signs; raise ValueError if it is not one that the declaration accepts."""
        evidence, key = _declared(self.declaration), self.given_key
        if evidence.sign is not None:
            try:
                key = load_signing_key(evidence.sign, evidence.sign_passphrase)
            except ModcryptError as error:
                error.args = (f"{error} (see sign and sign_passphrase in [evidence])",)
                raise
        if self.signers and (key is None or key.verifier not in self.signers):
            raise ValueError(
                f"{self.declaration.path} requires signed evidence (evidence.signed_by); name the "
                "signing key of one of these by evidence.sign, or pass it"
            )
        return key

    @contextmanager
    def record(
        self, event: str, *, is_off: bool = False, begins: bool = True, **texts: Any
    ) -> Iterator[list[DatasetResult]]:
        """Record an event: what the block adds to the list, or that it fails.

        Args:
            is_off: Whether to record nothing.
            begins: Whether a line says that it begins, because it changes something.
            texts: Further attributes of its lines.

        Raises:
            ValueError, KeyRetrievalError, FormatError, OSError: It cannot be recorded. If that is
                known before it begins, the block does not run.
        """
        results: list[DatasetResult] = []
        begun = None
        if is_off or self.declaration.evidence is None:
            yield results
            return
        with self._explaining(f"{event} has not begun, because it cannot be recorded"):
            if begins:
                begun = self._append(event, "begun", **texts).number
            else:  # raise if no line can be added, as far as that is known without adding one
                _, folder = self.signing_key, self.path.parent
                if not os.access(folder, os.W_OK | os.X_OK):
                    raise PermissionError(13, os.strerror(13), str(folder))
        try:
            yield results
        except BaseException as error:
            word = describe(error).word if isinstance(error, Exception) else "interrupted"
            # A begun event without an end is reported, too.
            with suppress(OSError, ValueError, ModcryptError):
                self._append(event, "failed", results, begun=begun, error=word, **texts)
            raise
        with self._explaining(f"{event} has ended, but this could not be recorded"):
            self._append(event, "done", results, begun=begun, **texts)

    def add(
        self, event: str, results: Iterable[DatasetResult] = (), *, keys: Sequence[str] = ()
    ) -> None:
        """Record an event that has happened; raise as `record`."""
        if self.declaration.evidence is not None:
            with self._explaining(f"{event} could not be recorded"):
                self._append(event, "done", results, keys=keys)

    @contextmanager
    def _explaining(self, text: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, f"{text}: {error.strerror}", str(self.path)) from None
        except ModcryptError as error:
            error.args = (f"{text}: {error}",)
            raise

    def _append(
        self, event: str, phase: str, results: Iterable[DatasetResult] = (), *,
        begun: int | None = None, keys: Sequence[str] = (), **texts: Any,
    ) -> EvidenceEvent:  # fmt: skip
        """Add a line; the lock keeps out others from when the line before is read."""
        key, added = self.signing_key, list[EvidenceEvent]()
        listed, more = fit_results(results)
        texts = {name: printable(text, MAX_NAME) for name, text in texts.items()}

        def make(record: bytes) -> bytes:
            before, previous = self._read_last(record)
            made = EvidenceEvent(
                number=1 if before is None else before.number + 1, hash="",
                time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                event=event, phase=phase, begun=begun, user=_find_user(),
                signer=None if key is None else key.verifier.hex_id, version=__version__,
                declaration=self.declaration.sha256, results=listed, more_datasets=more,
                keys=tuple(printable(each, MAX_NAME) for each in keys[:MAX_KEYS]),
                records=link_records(self.declaration.path, before), **texts,
            )  # fmt: skip
            line = make_line(made, previous, key)
            added.append(replace(made, hash=hash_line(line[:-1])))
            return line

        mode = mode_beside(self.declaration.path)
        append_lines(self.path, make, MAX_RECORD, most=MAX_LINES, mode=mode)
        return added[0]

    def _read_last(self, record: bytes) -> tuple[EvidenceEvent | None, str]:
        """Return the last line, which must be as it was written, and its hash."""
        if not (lines := record.splitlines()):
            return None, START
        try:
            line = parse_line(lines[-1])
            if line.event.number != len(lines):
                raise ValueError(f"has the number {line.event.number}")
            if self.signers and find_signer(line.members, self.signers) is None:
                raise ValueError("is not signed by a key that evidence.signed_by names")
        except ValueError as error:
            raise FormatError(
                f"line {len(lines)} of {self.path} {error}; restore the file, or move it to "
                "another place and keep it (modcrypt report --check lists all faults)"
            ) from None
        return line.event, line.event.hash


def _declared(declaration: LakeDeclaration) -> EvidenceDeclaration:
    return declaration.evidence or EvidenceDeclaration()


def _find_user() -> str:
    """Return the user name of the operating system, or the number of the user."""
    try:
        return printable(getpass.getuser(), MAX_NAME)
    except (ImportError, KeyError, OSError):  # a container may have no name for its user
        return f"uid {os.geteuid()}" if has_owners() else ""
