"""The subject vault: one data key for each subject, wrapped, in a database.

A row has the data key of a subject as an AGS1 stream under the KEK of its generation, whose AAD
names vault, generation and reference: a row that was altered, or copied to another subject, opens
nothing. The KEKs are in the key file, see `modcrypt.subjects.key_file`. To erase a subject is to
name it in the key file as erased, and then to remove its row.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn

from modcrypt.aad import block_aad
from modcrypt.aead import BLOCK_OVERHEAD, GcmCipher
from modcrypt.ags1.layout import HEADER_SIZE, make_header
from modcrypt.errors import FormatError, KeyMaterialError, KeyNotFoundError, TagError
from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.keys import Key, key_bytes
from modcrypt.kms.key_tools import KeyTools
from modcrypt.report.text import format_count
from modcrypt.runtime.collector import paused_collector
from modcrypt.subjects.database import BATCH, FORMAT, Database, is_server
from modcrypt.subjects.key_file import KEY_LENGTH, KeyFile, read_key_file, write_key_file

MAX_SUBJECT, MAX_REQUEST = 64 << 10, 200
"""Length limits of a subject in bytes, and of the id of a request in characters."""

_HEADER, _FIRST_BLOCK = make_header(KEY_LENGTH), block_aad(b"", 0)
_STREAM_SIZE = HEADER_SIZE + KEY_LENGTH + BLOCK_OVERHEAD
_COLUMNS = f"reference, generation, substr(stream, 1, {_STREAM_SIZE + 1})"
_ROWS = f"SELECT {_COLUMNS} FROM subject_key"  # noqa: S608  # of a constant
_ERASED = "SELECT reference, request, time FROM erased_subject"


class SubjectErasedError(KeyNotFoundError):
    """A subject was erased, so that it is never given a key again; `references` are those."""

    def __init__(self, references: Iterable[bytes]) -> None:
        self.references = tuple(references)
        super().__init__(
            f"erased among these rows: {format_count(len(self.references), 'subject')}; an "
            "erased subject gets no new key: leave out its rows; a person who comes back needs a "
            "new id"
        )


class SubjectVault:
    """A vault with one data key for each subject, for any number of threads and processes."""

    def __init__(self, database: Database, place: Place, tools: KeyTools) -> None:
        self._database, self._place, self._tools = database, place, tools
        try:
            self._keys = self._read_keys()
        except BaseException:
            database.close()
            raise

    def __repr__(self) -> str:
        return f"SubjectVault({self._keys.vault.hex()!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SubjectVault can't be pickled; open it in each process")

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def references(self, subjects: Sequence[bytes]) -> list[bytes]:
        """Return the reference of each subject: HMAC-SHA-256, cut to 16 bytes.

        Subjects are integers in decimal ASCII, strings as UTF-8, and binary values as they are.
        Raise ValueError for one that is empty or longer than 64 KiB.
        """
        if not all(0 < len(subject) <= MAX_SUBJECT for subject in subjects):
            raise ValueError(f"a subject has 1 to {MAX_SUBJECT} bytes")
        return list(map(self._keys.reference, subjects))

    @paused_collector()
    def data_keys(self, references: Sequence[bytes], *, create: bool = False) -> list[Key | None]:
        """Return the data key of each subject; None if the subject is erased or unknown.

        Args:
            references: References of the subjects, each of 16 bytes; they may repeat.
            create: Whether to create a key for each unknown subject: one for each, also if several
                processes do so at once.

        Raises:
            SubjectErasedError: `create` is given, and a subject was erased.
            KeyMaterialError: A key does not unwrap, because its row was altered or moved.
            FormatError, OSError: The database is damaged, or cannot be used.
        """
        unique = set(references)
        found = self._find(unique)
        if create and len(found) < len(unique):
            found |= self._create(unique - found.keys())
        return [found.get(reference) for reference in references]

    def erased(self, references: Sequence[bytes]) -> list[bool]:
        """Return whether each subject is erased, and not unknown; raise as `data_keys`."""
        found = self._list_erased(references)
        return [reference in found for reference in references]

    def _find(self, references: Iterable[bytes]) -> dict[bytes, Key]:
        rows, erased = self._database.select(_ROWS, references), self._keys.erased
        return {row[0]: self._unwrap(*row) for row in rows if row[0] not in erased}

    def _create(self, missing: set[bytes]) -> dict[bytes, Key]:
        """Return the keys of subjects, in a transaction that no other process can be in."""
        with self._database.transaction():
            ((generation,),) = self._database.query("SELECT generation FROM vault")
            self._cipher(generation)  # the key file decides which there are
            if erased := self._list_erased(missing):
                raise SubjectErasedError(sorted(erased))
            found = self._find(missing)  # others may have created some meanwhile
            new = {each: Key.generate(KEY_LENGTH) for each in sorted(missing - found.keys())}
            rows = [(r, generation, self._wrap(generation, r, key)) for r, key in new.items()]
            self._database.query_each("INSERT INTO subject_key VALUES (?, ?, ?)", rows)
        return found | new

    def _cipher(self, generation: object) -> GcmCipher:
        """Return the cipher of a generation; a rotation may have added it since the opening."""
        if generation not in self._keys.ciphers:
            self._keys = self._read_keys()
        if not isinstance(generation, int) or generation not in self._keys.ciphers:
            raise KeyMaterialError(
                f"{self._place.address} has no key for generation {generation}: the database is "
                "from before a rotation, so that nothing opens it, or was altered; restore a "
                "backup from after the last rotation"
            )
        return self._keys.ciphers[generation]

    def _aad(self, generation: int, reference: bytes) -> bytes:
        return self._keys.vault + generation.to_bytes(4, "big") + reference + _FIRST_BLOCK

    def _wrap(self, generation: int, reference: bytes, key: Key) -> bytes:
        aad = self._aad(generation, reference)
        return _HEADER + self._keys.ciphers[generation].encrypt_block(key_bytes(key), aad)

    def _unwrap(self, reference: bytes, generation: int, stream: bytes) -> Key:
        cipher = self._keys.ciphers.get(generation) or self._cipher(generation)
        is_key = type(reference) is type(stream) is bytes and len(stream) == _STREAM_SIZE
        if is_key and stream.startswith(_HEADER):
            with suppress(TagError):
                aad = self._aad(generation, reference)
                return Key(cipher.decrypt_block(stream[HEADER_SIZE:], aad))
        raise KeyMaterialError(
            f"the key of subject {reference.hex() if is_key else ''} does not unwrap: its row was "
            "altered, or copied from another subject or vault; restore it from a backup"
        )

    def _read_keys(self) -> KeyFile:
        """Return the key file as it is now, which must be that of the database."""
        keys = read_key_file(self._place, self._tools)
        rows = self._database.query("SELECT id, format FROM vault LIMIT 2")
        if len(rows) != 1 or rows[0][1] != FORMAT:
            raise FormatError(f"the database is no subject vault of format {FORMAT}")
        if rows[0][0] != keys.vault:
            raise KeyMaterialError(f"key file {self._place.address} is that of another vault")
        return keys

    def _list_present(self, references: Iterable[bytes]) -> set[bytes]:
        return {row[0] for row in self._database.select(_ROWS, references)}

    def _list_erased(self, references: Iterable[bytes]) -> dict[bytes, tuple[str, str]]:
        """Return request and time of those subjects that are erased."""
        named = self._keys.erased
        found = {each: (named[each], "") for each in references if each in named}
        rows = self._database.select(_ERASED, references)
        return found | {row[0]: (str(row[1]), str(row[2])) for row in rows}

    def erase(self, references: Sequence[bytes], request: str) -> dict[str, int]:
        """Remove the keys of subjects for good, and complete an interrupted erasure of the request.

        Killed at any moment, either nothing is erased, or `status` reports what remains to be done
        and no key is given out for the subjects; another call, also without them, completes it.

        Returns:
            The numbers of subjects: "erased" now, erased "before", and "unknown" to the vault.

        Raises:
            ValueError: The id of the request is empty or longer than 200 characters.
            LimitError: Too many subjects were erased since the last rotation.
            KeyMaterialError, FormatError, OSError: As `data_keys`; the key file cannot be written.
        """
        if not 0 < len(request) <= MAX_REQUEST:
            raise ValueError(f"the id of a request has 1 to {MAX_REQUEST} characters")
        wanted = set(references)
        with self._changing() as keys:
            present, known = self._list_present(wanted), self._list_erased(wanted)
            erased = {**keys.erased, **dict.fromkeys(sorted(present), request)}
            self._publish(erased=erased)
            removed = self._remove([each for each, name in erased.items() if name == request])
        before = known.keys() - present
        return {"erased": removed, "before": len(before), "unknown": len(wanted - before - present)}

    def _remove(self, erased: Sequence[bytes]) -> int:
        """Remove the rows of subjects that the key file names as erased; return their number."""
        present = self._list_present(erased)
        delete = "DELETE FROM subject_key WHERE reference = ?"
        self._database.query_each(delete, [(each,) for each in sorted(present)])
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        insert = "INSERT INTO erased_subject VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        self._database.query_each(insert, [(r, self._keys.erased[r], now) for r in sorted(erased)])
        return len(present)

    @contextmanager
    def _changing(self) -> Iterator[KeyFile]:
        """Read the key file in a transaction, so that no other process changes either meanwhile."""
        with self._database.transaction():
            self._keys = self._read_keys()
            yield self._keys

    def _publish(self, **changes: Any) -> None:
        changed = replace(self._keys, **changes)
        write_key_file(self._place, changed, self._tools)
        self._keys = changed

    def rotate(self, master_key_id: str | None = None) -> dict[str, Any]:
        """Wrap all keys under a new KEK, and remove the old one; complete an interrupted rotation.

        Copies of the database from before open nothing afterwards, but with a copy of the key file
        from before. Other processes go on reading and writing meanwhile. `master_key_id` names
        another master key from now on. Raise as `erase`, and as the key service.
        """
        with self._changing() as keys:
            if len(keys.keks) == 1:
                self._tools.wrapper.forget()  # wrap under the newest version of the master key
                keks = {**keys.keks, keys.newest + 1: Key.generate(KEY_LENGTH)}
                self._publish(keks=keks, master_key_id=master_key_id or keys.master_key_id)
            self._remove([*self._keys.erased])
            self._database.query("UPDATE vault SET generation = ?", (self._keys.newest,))
        after: bytes | None = b""
        while after is not None:
            after = self._rewrap_batch(after)
        with self._changing() as keys:
            self._remove([*keys.erased])
            if self._count_older():
                raise FormatError("the database was restored meanwhile; run the rotation again")
            self._publish(keks={keys.newest: keys.keks[keys.newest]}, erased={})
        return self.status()

    def _rewrap_batch(self, after: bytes) -> bytes | None:
        """Wrap the keys of a batch under the newest KEK; return its last reference, if any."""
        select = f"{_ROWS} WHERE reference > ? ORDER BY reference LIMIT {BATCH}"
        with self._database.transaction():
            rows, newest = self._database.query(select, (after,)), self._keys.newest
            keys = [self._unwrap(*row) for row in rows]
            both = zip(rows, keys, strict=True)
            old = [(row[0], key) for row, key in both if row[1] != newest]
            changed = [(self._wrap(newest, each, key), newest, each) for each, key in old]
            update = "UPDATE subject_key SET stream = ?, generation = ? WHERE reference = ?"
            self._database.query_each(update, changed)
        return rows[-1][0] if rows else None

    def _count(self, rows: str) -> int:
        return int(self._database.query(f"SELECT count(*) FROM {rows}")[0][0])  # noqa: S608

    def _count_older(self) -> int:
        return self._count(f"subject_key WHERE generation <> {self._keys.newest}")

    def status(self) -> dict[str, Any]:
        """Return the id of the vault, its newest generation, and numbers of subjects.

        They are "subjects" with a key; those that are "erased", and of these "since_rotation",
        whose keys are in copies of database and key file from before; "returned" ones that are
        erased, but have a row, because an erasure was interrupted or a backup restored, with the
        "requests" to complete; and those under an "older" KEK, because a rotation was interrupted.
        It is "complete" without the last two.
        """
        keys = self._keys = self._read_keys()
        erased, returned = keys.erased, self._list_present(keys.erased)
        listed, older = sum(1 for _ in self._database.select(_ERASED, erased)), self._count_older()
        return {
            "vault": keys.vault.hex(), "generation": keys.newest,
            "subjects": self._count("subject_key") - len(returned),
            "erased": self._count("erased_subject") + len(erased) - listed,
            "since_rotation": len(erased), "returned": len(returned),
            "requests": sorted({erased[each] for each in returned}), "older": older,
            "complete": not (returned or older),
        }  # fmt: skip

    def examine(self, reference: bytes) -> dict[str, str]:
        """Return reference, state, request and time of the erasure of a subject; empty if unknown.

        The state is "known", "unknown", "erased", or "returned" if it is erased but has a row.
        """
        self._keys = self._read_keys()
        request, time = self._list_erased([reference]).get(reference, ("", ""))
        has_row = bool(self._list_present([reference]))
        states = {(True, False): "known", (False, False): "unknown", (False, True): "erased"}
        state = states.get((has_row, bool(request)), "returned")
        return {"reference": reference.hex(), "state": state, "request": request, "time": time}


def create_vault(address: str, tools: KeyTools, master_key_id: str) -> SubjectVault:
    """Create a vault, its database and its key file under a master key, and return it.

    Arguments and errors are as for `open_vault`; raise FileExistsError if either file exists.
    """
    where, place = split_address(address)
    place.check_absent()
    tools.wrapper.prove_master(master_key_id)
    content = KeyFile(master_key_id=master_key_id)
    if not is_server(where):
        os.close(os.open(where, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(Database(where)) as database, database.transaction(creates=True):
        database.make_tables(content.vault)
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
    if is_server(where) and not keys:
        raise ValueError("a vault in PostgreSQL needs a key file: add ?keys=PLACE to its address")
    return where, Place(*locate(keys[0] if keys else f"{where}.keks", None))
