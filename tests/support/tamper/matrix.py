"""The tamper matrix: every attack against modcrypt's readers, each outcome as it was run.

    detected     the reader raised an error; of modcrypt a ModcryptError counts,
                 and PyArrow's error where PyArrow was asked to verify a CRC
    wrong data   it gave rows that aren't those of the file
    named        it found no fault, but had said that this part isn't verified
    accepted     it gave the right rows
    contacted    it went to the attacker's address
    crash        it raised what no caller expects
    n/a          it can't do this reading at all, with the reason

`tools/tamper_matrix.py` runs it and writes `docs/reference/tamper-matrix.csv`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.java.parquet_java import ParquetJava
from tests.support.tamper.attacks import ATTACKS, NAMED, Attack
from tests.support.tamper.files import ADDRESS, DATA, Base, Files, Reading
from tests.support.tamper.readers import UNREADABLE, Answer, Reader, java_reader, modcrypt_readers


@dataclass(frozen=True)
class Cell:
    """One outcome, and what it came from."""

    outcome: str
    reason: str = ""  # of n/a
    detail: str = ""  # for whoever looks into it; not published

    def __str__(self) -> str:
        return f"{self.outcome}: {self.reason}" if self.reason else self.outcome


def all_readers(java: ParquetJava | None) -> dict[str, Reader]:
    """Return the readers by name; parquet-java with our factory only if a JVM is present."""
    readers = [*modcrypt_readers(), *([java_reader(java)] if java is not None else [])]
    return {reader.name: reader for reader in readers}


# --- running -------------------------------------------------------------------------------------


class Listener:
    """The attacker's server, which notes who comes."""

    def __init__(self) -> None:
        self.visits: list[str] = []
        visits = self.visits

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                visits.append(self.path)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        """Return where it listens, as long as the placeholder in the files."""
        return ADDRESS.replace(":00000", f":{self.server.server_port:05}")


@contextmanager
def listening() -> Iterator[Listener]:
    """Run the attacker's server on the loopback interface."""
    listener = Listener()
    thread = threading.Thread(target=listener.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield listener
    finally:
        listener.server.shutdown()
        listener.server.server_close()
        thread.join()


@dataclass
class Trial:
    """One reader against all attacks, in a folder of its own."""

    reader: Reader
    folder: Path
    listener: Listener
    controls: dict[tuple[str, Reading], str] = field(default_factory=dict)
    count: int = 0

    def outcome(self, attack: Attack) -> Cell:
        """Try the attack on the first base that the reader reads, unaltered, with this reading."""
        reasons = []
        for base in attack.bases:
            reading = attack.reading(base)
            reason = self.reader.lacks(reading) or self._control(base, reading)
            if not reason:
                return self._attack(attack, base, reading)
            reasons.append(reason)
        return Cell("n/a", reasons[0])

    def _control(self, base: Base, reading: Reading) -> str:
        """Explain why the reader can't be tried: it must read the unaltered file right."""
        key = base.name, reading
        if key not in self.controls:
            answer = self._answer(base.files, reading)
            right = answer.kind in ("rows", "named") and answer.rows == reading.select(base.rows)
            if not right and self.reader.version.startswith("modcrypt"):
                raise AssertionError(f"{self.reader.name} and {base.name}: {answer}")
            self.controls[key] = "" if right else UNREADABLE
        return self.controls[key]

    def _attack(self, attack: Attack, base: Base, reading: Reading) -> Cell:
        altered = attack.apply(base)
        if altered == base.files:
            raise AssertionError(f"{attack.name} alters nothing")
        self.listener.visits.clear()
        answer = self._answer(altered, reading)
        if self.listener.visits:
            return Cell("contacted", detail=answer.text)
        right = answer.rows == reading.select(base.rows)
        return Cell(_judge(answer, attack, right=right), detail=f"{base.name}: {answer.text}")

    def _answer(self, files: Files, reading: Reading) -> Answer:
        self.count += 1
        place = self.folder / f"{self.count}"
        place.mkdir()
        for name, data in files.items():
            sent = data.replace(ADDRESS.encode(), self.listener.address.encode())
            (place / name).write_bytes(sent)
        return self.reader.answer(place / DATA if DATA in files else place, reading)


def _judge(answer: Answer, attack: Attack, *, right: bool) -> str:
    if answer.kind in ("error", "crash"):
        return {"error": "detected", "crash": "crash"}[answer.kind]
    if right:
        return "accepted"
    return "named" if answer.kind == "named" and attack.unseen in NAMED else "wrong data"


def run(reader: Reader, folder: Path, attacks: Iterable[Attack] = ATTACKS) -> dict[str, Cell]:
    """Try a reader against attacks; return the outcomes by the attacks' titles."""
    folder.mkdir()
    with listening() as listener:
        trial = Trial(reader, folder, listener)
        return {title(attack): trial.outcome(attack) for attack in attacks}


def title(attack: Attack) -> str:
    """Return the unique name of an attack in the table."""
    return f"{attack.group}: {attack.name}"
