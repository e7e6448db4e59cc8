"""The subject vault: one data key for each subject, wrapped, in a database.

A row has the data key of a subject as an AGS1 stream under the KEK of its generation, whose AAD
names vault, generation and reference: a row that was altered, or copied to another subject, opens
nothing. The KEKs are in the key file, see `modcrypt.subjects.key_file`. To erase a subject is to
name it in the key file as erased, and then to replace its row by one of an erased subject, which
has a proof that the vault did so.
"""

from __future__ import annotations

import datetime
import hmac
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from secrets import token_bytes
from typing import Any, NoReturn, TypeAlias

from modcrypt.aead import ValueCipher
from modcrypt.errors import FormatError, KeyMaterialError, KeyNotFoundError, TagError
from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.keys import Key
from modcrypt.kms.key_tools import KeyTools
from modcrypt.report.text import format_count
from modcrypt.runtime.collector import paused_collector
from modcrypt.runtime.tracebacks import hide_frames
from modcrypt.subjects.database import FORMAT, Database, create_database, is_server
from modcrypt.subjects.key_file import (
    KEY_LENGTH,
    REFERENCE_SIZE,
    KeyFile,
    is_current,
    read_key_file,
    write_key_file,
)

MAX_SUBJECT, MAX_REQUEST = 64 << 10, 200
"""Length limits of a subject in bytes, and of the id of a request in characters."""

KEPT = 1 << 17  # number of subjects whose keys a vault keeps in memory; each takes about 400 bytes

Owner: TypeAlias = tuple[bytes, ValueCipher | None]  # reference of a subject, None if it is erased

_ROWS = "SELECT reference, generation, substr(stream, 1, 100) FROM subject_key"
_ERASED = "SELECT reference, request, time, proof FROM erased_subject"
_ADVICE = "it was altered, or copied from another subject or vault; restore a backup"


class SubjectErasedError(KeyNotFoundError):
    """A subject was erased, so that it is never given a key again; `references` are those."""

    def __init__(self, references: Iterable[bytes]) -> None:
        self.references = tuple(references)
        count = format_count(len(self.references), "subject")
        super().__init__(
            f"erased among these rows: {count}; an erased subject gets no new key: leave out its "
            "rows; a person who comes back needs a new id"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.references,)  # worker processes pickle it


class SubjectVault:
    """A vault with one data key for each subject, for any number of threads and processes."""

    _known: dict[bytes, Owner]
    _connection: Any  # of the database whose vault was checked
    _version: int  # of the database when `_known` was empty

    def __init__(self, database: Database, place: Place, tools: KeyTools) -> None:
        self._database, self._place, self._tools = database, place, tools
        try:
            self._read_keys()
        except BaseException:
            database.close()
            raise

    def __repr__(self) -> str:
        return f"SubjectVault({self.id!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SubjectVault can't be pickled; open it in each process")

    def close(self) -> None:
        """Close the database, and forget all keys of subjects."""
        self._known = {}
        self._database.close()

    @property
    def id(self) -> str:
        """The id of the vault, in hex."""
        return self._keys.vault.hex()

    def references(self, subjects: Sequence[bytes]) -> list[bytes]:
        """Return the reference of each subject: HMAC-SHA-256, cut to 16 bytes.

        Subjects are integers in decimal ASCII, strings as UTF-8, and binary values as they are.
        Raise ValueError for one that is empty or longer than 64 KiB.
        """
        if not are_subjects(subjects):
            raise ValueError(f"a subject has 1 to {MAX_SUBJECT} bytes")
        return [each[:REFERENCE_SIZE] for each in map(self._keys.hash_subject, subjects)]

    @paused_collector()
    def find(self, subjects: Sequence[bytes], *, create: bool) -> list[Owner]:
        """Return reference and cipher of each of distinct subjects, which are kept for later calls.

        Args:
            subjects: Subjects, as for `references`.
            create: Whether to create a key for each unknown subject: one for each, also if several
                processes do so at once.

        Returns:
            Pairs; erased subjects have None in place of a cipher.

        Raises:
            ValueError: As `references`.
            KeyNotFoundError: The vault does not know a subject, and `create` is False.
            SubjectErasedError: `create` is given, and a subject was erased.
            KeyMaterialError: A row was altered or moved.
            FormatError, OSError: The database is damaged, or cannot be used.
        """
        self._refresh(writes=create)
        known = self._known  # other threads may clear it, or an erasure replace it
        owners = {subject: known.get(subject) for subject in subjects}
        if new := [subject for subject, owner in owners.items() if owner is None]:
            references = self.references(new)
            ciphers = self.ciphers(references, create=create)
            owners |= zip(new, zip(references, ciphers, strict=True), strict=True)
            if len(known) + len(new) > KEPT:
                known.clear()
            pairs = ((subject, owners[subject]) for subject in new[:KEPT])
            known.update((subject, owner) for subject, owner in pairs if owner and owner[1])
        return [owner for owner in owners.values() if owner is not None]

    @paused_collector()
    def ciphers(
        self, references: Sequence[bytes], *, create: bool = False
    ) -> list[ValueCipher | None]:
        """Return the ciphers of subjects by reference, None for erased ones, as `find`."""
        self._refresh()
        unique = set(references)
        found: dict[bytes, Any] = self._find(unique)
        if missing := unique - found.keys():
            found |= self._create(missing) if create else self._expect_erased(missing)
        return [found[reference] for reference in references]

    def _find(self, references: Iterable[bytes]) -> dict[bytes, ValueCipher]:
        rows = [*self._database.select(_ROWS, references)]
        if not {row[1] for row in rows} <= self._keys.keks.keys():
            self._refresh()  # a rotation has begun, or ended while pages of rows were read
            rows = [*self._database.select(_ROWS, references)]
        return {each: ValueCipher(key) for each, key in self._unwrap(rows).items()}

    @hide_frames
    def _create(self, missing: set[bytes]) -> dict[bytes, ValueCipher]:
        """Return the ciphers of subjects, in a transaction that no other process can be in."""
        with self._changing() as keys:
            if erased := self._list_erased(missing):
                raise SubjectErasedError(sorted(erased))
            found = self._find(missing)  # others may have created some meanwhile
            new = {each: token_bytes(KEY_LENGTH) for each in sorted(missing - found.keys())}
            self._database.query_each("INSERT INTO subject_key VALUES (?, ?, ?)", keys.wrap(new))
        return found | {each: ValueCipher(key) for each, key in new.items()}

    def _expect_erased(self, missing: set[bytes]) -> dict[bytes, None]:
        """Raise KeyNotFoundError unless subjects are erased."""
        if unknown := len(missing - self._list_erased(missing).keys()):
            raise KeyNotFoundError(
                f"the vault does not know {format_count(unknown, 'subject')} of these rows: keys "
                "are missing, not erased; open the latest state of the vault that they were "
                "written with",
                "subjects",
            )
        return dict.fromkeys(missing)

    @hide_frames
    def _unwrap(self, rows: Iterable[Sequence[Any]]) -> dict[bytes, bytes]:
        """Return the data keys of rows by reference, but those of erased subjects."""
        keys = self._keys
        rows = [row for row in rows if row[0] not in keys.erased] if keys.erased else [*rows]
        for generation in {row[1] for row in rows} - keys.keks.keys():
            shown = generation if isinstance(generation, int) else "of a damaged row"
            raise KeyMaterialError(
                f"{self._place.address} has no key for generation {shown}: the database is from "
                "before a rotation, so that nothing opens it, or was altered; restore a backup "
                "from after the last rotation"
            )
        try:
            return dict(zip([row[0] for row in rows], keys.unwrap(rows), strict=True))
        except (TagError, TypeError):
            raise KeyMaterialError(f"a subject's key does not unwrap: {_ADVICE}") from None

    def _refresh(self, *, writes: bool = False) -> None:
        """Read the key file again if it was changed, as by an erasure, or the database replaced.

        With `writes`, forget all keys of subjects if others changed the database: a backup that was
        copied over it may lack them, and nothing would open new values.
        """
        is_same = self._database.connect() is self._connection
        if not (is_same and is_current(self._place, self._keys)):
            self._read_keys()
        elif writes and self._database.version() != self._version:
            self._version, self._known = self._database.version(), {}

    def _read_keys(self) -> None:
        """Read the key file as it is now, which must be that of the database."""
        with self._database.lock:  # no thread changes the file between reading and keeping it
            keys = read_key_file(self._place, self._tools)
            self._version = self._database.version()
            self._check_database(keys)
            self._keep(keys)
            self._connection = self._database.connect()

    def _keep(self, keys: KeyFile) -> None:
        self._keys = keys
        self._known = {}  # what a thread finds by the old file is not kept

    def _check_database(self, keys: KeyFile) -> None:
        rows = self._database.query("SELECT id, format FROM vault LIMIT 2")
        if len(rows) != 1 or rows[0][1] != FORMAT:
            raise FormatError(f"the database is no subject vault of format {FORMAT}")
        if rows[0][0] != keys.vault:
            raise KeyMaterialError(f"key file {self._place.address} is that of another vault")

    def _list_present(self, references: Iterable[bytes]) -> set[bytes]:
        return {row[0] for row in self._database.select(_ROWS, references)}

    def _list_erased(self, references: Iterable[bytes]) -> dict[bytes, tuple[str, str]]:
        """Return request and time of those subjects that are erased."""
        erased, wanted = self._keys.erased, set(references)
        found = {each: (erased[each], "") for each in wanted & erased.keys()}
        return found | self._check_proofs(self._database.select(_ERASED, wanted))

    def _check_proofs(self, rows: Iterable[Sequence[Any]]) -> dict[bytes, tuple[str, str]]:
        """Return request and time of erased subjects; raise KeyMaterialError for a wrong proof."""
        found: dict[bytes, tuple[str, str]] = {}
        for reference, *erasure, proof in rows:
            request, time = map(str, erasure)
            is_proven = isinstance(reference, bytes) and hmac.compare_digest(
                self._keys.proof(reference, request, time).encode(), str(proof).encode()
            )
            if not is_proven:
                raise KeyMaterialError(f"the row of an erased subject has a wrong proof: {_ADVICE}")
            found[reference] = request, time
        return found

    def _count_erasures(self) -> int:
        """Return the number of subjects whose erasure the key file names or the database proves.

        Raise KeyMaterialError for a wrong proof.
        """
        known, after = set(self._keys.erased), b""
        while rows := self._database.page(_ERASED, after):
            known |= self._check_proofs(rows).keys()
            after = rows[-1][0]
        return len(known)

    def erase(self, references: Sequence[bytes], request: str) -> dict[str, int]:
        """Remove the keys of subjects for good, and complete an interrupted erasure of the request.

        Killed at any moment, either nothing is erased, or `status` reports what remains to be done
        and no key is given out for the subjects; another call, also without them, completes it.

        Returns:
            The numbers of subjects: "erased" now, erased "before", and "unknown" to the vault.

        Raises:
            ValueError: The id of the request does not have 1 to 200 printable characters.
            LimitError: Too many subjects were erased since the last rotation.
            KeyMaterialError, FormatError, OSError: As `find`; the key file cannot be written.
        """
        if not (0 < len(request) <= MAX_REQUEST and request.isprintable()):
            limit = f"1 to {MAX_REQUEST} characters, all printable"
            raise ValueError(f"the id of a request has {limit}")
        wanted = set(references)
        with self._changing() as keys:
            present, known = self._list_present(wanted), self._list_erased(wanted)
            erased = {**keys.erased, **dict.fromkeys(sorted(present), request)}
            self._publish(erased=erased, erasures=keys.erasures + len(present - known.keys()))
            removed = self._remove([each for each, name in erased.items() if name == request])
        before = known.keys() - present
        return {"erased": removed, "before": len(before), "unknown": len(wanted - before - present)}

    def _remove(self, erased: Sequence[bytes]) -> int:
        """Remove the rows of subjects that the key file names as erased; return their number."""
        present = self._list_present(erased)
        delete = "DELETE FROM subject_key WHERE reference = ?"
        self._database.query_each(delete, [(each,) for each in sorted(present)])
        now, keys = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), self._keys
        named = [(each, keys.erased[each], now) for each in sorted(erased)]
        insert = "INSERT INTO erased_subject VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
        self._database.query_each(insert, [(*each, keys.proof(*each)) for each in named])
        self._list_erased(erased)  # raises if a forged row was there before
        return len(present)

    @contextmanager
    def _changing(self) -> Iterator[KeyFile]:
        """Read the key file in a transaction, so that no other process changes either meanwhile."""
        with self._database.transaction():
            self._refresh()
            self._check_database(self._keys)
            yield self._keys

    def _publish(self, **changes: Any) -> None:
        changed = replace(self._keys, **changes)
        self._keep(write_key_file(self._place, changed, self._tools))

    def rotate(self, master_key_id: str | None = None) -> dict[str, Any]:
        """Wrap all keys under a new KEK, and remove older ones, also of an interrupted rotation.

        Copies of the database from before open nothing afterwards, but with a copy of the key file
        from before. Other processes go on reading and writing meanwhile. `master_key_id` names
        another master key from now on. Raise as `erase`, and as the key service.
        """
        with self._changing() as keys:
            self._tools.wrapper.forget()  # wrap under the newest version of the master key
            before, number = keys.erased, keys.newest + 1
            keks = {**keys.keks, number: Key.generate(KEY_LENGTH)}
            self._publish(keks=keks, master_key_id=master_key_id or keys.master_key_id)
            self._remove([*before])
        after: bytes | None = b""
        while after is not None:
            after = self._rewrap_batch(after)
        with self._changing() as keys:
            self._remove([*keys.erased])
            if keys.newest == number:  # otherwise, a later rotation ends this one, too
                if self._count_keys("<>"):
                    raise FormatError(
                        "the database was restored or altered meanwhile; run the rotation again, "
                        "and restore a backup if it fails again"
                    )
                # Keys of those erased since may be in copies of the database, under the new KEK.
                erased = {each: name for each, name in keys.erased.items() if each not in before}
                # A key file from before some erasures does not count them.
                erasures = max(keys.erasures, self._count_erasures())
                self._publish(keks={number: keys.keks[number]}, erased=erased, erasures=erasures)
        return self.status()

    @hide_frames
    def _rewrap_batch(self, after: bytes) -> bytes | None:
        """Wrap the keys of a batch under the newest KEK; return its last reference, if any."""
        # Those of erased subjects, which someone may have put back, are not: they would open again.
        with self._changing() as keys:  # another rotation may have ended and begun since
            rows = self._database.page(_ROWS, after)
            opened = self._unwrap(rows)  # also those under the newest KEK: a check
            older = [row[0] for row in rows if row[0] in opened and row[1] != keys.newest]
            wrapped = keys.wrap({each: opened[each] for each in older})
            update = "UPDATE subject_key SET stream = ?, generation = ? WHERE reference = ?"
            self._database.query_each(update, [row[::-1] for row in wrapped])
        return rows[-1][0] if rows else None

    def _count(self, rows: str) -> int:
        return int(self._database.query(f"SELECT count(*) FROM {rows}")[0][0])  # noqa: S608

    def _count_keys(self, comparison: str) -> int:
        """Return the number of keys whose generation is "<", ">" or "<>" the newest one."""
        return self._count(f"subject_key WHERE generation {comparison} {self._keys.newest}")

    def status(self) -> dict[str, Any]:
        """Return the id of the vault, its newest generation, and numbers of subjects.

        They are "subjects" with a key; those that are "erased", and "since_rotation" those whose
        keys are in copies of database and key file from before; "returned" ones that are erased,
        but have a row, because an erasure was interrupted or a backup restored, with the "requests"
        to complete; those under an "older" KEK, because a rotation was interrupted; those that
        were erased before the last rotation, but whose proofs are "missing" from the database; and
        those that are under a "newer" KEK than the key file has, or that were erased after it was
        written. It is "complete" without the last four. Rows with keys are counted, not
        authenticated: one that was removed is an error when values are read.
        """
        while True:
            self._read_keys()
            keys, status = self._keys, self._count_states()
            if is_current(self._place, keys):  # not the old one of a database that others changed
                return status

    def _count_states(self) -> dict[str, Any]:
        keys, uncounted = self._keys, self._count_erasures() - self._keys.erasures
        returned, older = self._list_present(keys.erased), self._count_keys("<")
        missing, newer = max(0, -uncounted), max(0, uncounted) + self._count_keys(">")
        return {
            "vault": keys.vault.hex(), "generation": keys.newest,
            "subjects": self._count("subject_key") - len(returned),
            "erased": self._count("erased_subject"), "since_rotation": len(keys.erased),
            "returned": len(returned),
            "requests": sorted({keys.erased[each] for each in returned}), "older": older,
            "missing": missing, "newer": newer,
            "complete": not (returned or older or missing or newer),
        }  # fmt: skip

    def list_known(self, subjects: Sequence[bytes]) -> set[bytes]:
        """Return those subjects that the vault has a key of, or has erased; raise as `find`."""
        self._refresh()
        named = dict(zip(self.references(subjects), subjects, strict=True))
        return {named[each] for each in self._list_present(named) | self._list_erased(named).keys()}

    def examine(self, reference: bytes) -> dict[str, str]:
        """Return reference, state, request and time of the erasure of a subject; empty if unknown.

        The state is "known", "unknown", "erased", or "returned" if it is erased but has a row.
        """
        self._refresh()
        request, time = self._list_erased([reference]).get(reference, ("", ""))
        with_row, without = ("returned", "erased") if request else ("known", "unknown")
        state = with_row if self._list_present([reference]) else without
        return {"reference": reference.hex(), "state": state, "request": request, "time": time}


def are_subjects(subjects: Iterable[bytes]) -> bool:
    """Return whether the lengths of subjects are those that subjects can have."""
    return all(0 < length <= MAX_SUBJECT for length in {*map(len, subjects)})


def create_vault(address: str, tools: KeyTools, master_key_id: str) -> SubjectVault:
    """Create a vault, its database and its key file under a master key, and return it.

    Arguments and errors are as for `open_vault`; raise FileExistsError if either file exists.
    """
    where, place = split_address(address)
    place.check_absent()
    tools.wrapper.prove_master(master_key_id)
    vault, references, kek = token_bytes(16), Key.generate(KEY_LENGTH), Key.generate(KEY_LENGTH)
    content = KeyFile(
        vault=vault, master_key_id=master_key_id, references=references, keks={1: kek}
    )
    with create_database(where, vault):
        write_key_file(place, content, tools, overwrite=False)
    return open_vault(address, tools)


def open_vault(address: str, tools: KeyTools) -> SubjectVault:
    """Return a vault that `create_vault` made.

    Args:
        address: Path of an SQLite database, or a "postgresql://..." URI. `?keys=PLACE` at its end
            names the path or URL of the key file, by default the path of the database and ".keks".
        tools: Tools of the key service whose master key protects the vault.

    Raises:
        ValueError: The address of a PostgreSQL vault names no key file, or has a password.
        KeyMaterialError: The key file is malformed, altered, or of another vault.
        KeyRetrievalError: The key service refuses the master key.
        FormatError, OSError: The database is no vault, or does not exist or cannot be reached.
    """
    where, place = split_address(address)
    return SubjectVault(Database(where), place, tools)


def split_address(address: str) -> tuple[str, Place]:
    """Return the address of the database of a vault, and the place of the key file."""
    where, *keys = re.split(r"[?&]keys=", address, maxsplit=1)
    if not (where and all(keys)):
        raise ValueError("the address of a vault is PATH, PATH?keys=PLACE or a URI of PostgreSQL")
    if is_server(where) and not keys:
        raise ValueError("a vault in PostgreSQL needs a key file: add ?keys=PLACE to its address")
    return where, Place(*locate(keys[0] if keys else f"{where}.keks", None))
