"""A watch over the whole suite: the tests' own keys turn up in nothing that is shown or left.

It is on in every process that runs tests, from `tests/conftest.py`. Whatever passes by one of its
channels is searched for the keys, as bytes, hex, base64 and as Python spells bytes; what is found
fails the test during which it passed by.

    log         every record that reaches the root logger; modcrypt's own from DEBUG on
    exception   every ModcryptError when it is made; what `pytest.raises` caught, and what failed a
                test, with all that it is chained to
    repr        of objects that hold keys, whenever code requests one
    output      stdout and stderr of every test, of programs that it ran and of click's runner
    temporary   each temporary file when it takes its name or is removed, those of updated keyrings
                among that; and those that killed processes left, when the folder they are in is
                removed, or at the end of the session
    argument    of every process that a test starts

Environment variables are a way to hand keys over, and are not searched. Neither are temporary files
that a program run by a test publishes or removes itself: this process does not see them.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
import os
import re
import stat
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click.testing
import pytest

import modcrypt
from modcrypt.kms.keyed_encryption import KeyedEncryption
from modcrypt.kms.recipients.identity_retriever import IdentityKeys
from modcrypt.kms.services.environment import EnvironmentKms
from modcrypt.kms.wrapping import Kek, KeyWrapper
from modcrypt.parquet.crypto.ciphers import ColumnKey, FileCipher
from modcrypt.pkmt1.material import KeyMaterial
from modcrypt.pkmt1.recipient_metadata import RecipientMaterial
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY

MAX_FILE = 4 << 20
"""Bytes of a temporary file that are searched, from its start."""

PIECE = 64 << 10
"""Bytes of it that are in memory at once: some tests measure how much modcrypt takes."""

WORD = 8
"""Bytes of the words by which data are searched first, from their start on."""

KEYS = {
    "FOOTER_KEY": FOOTER_KEY,
    "COLUMN_KEY": COLUMN_KEY,
    "OTHER_KEY": OTHER_KEY,
    "the key of bytes A0 to AF": bytes(range(0xA0, 0xB0)),
    "the key of bytes C1 to D0": bytes(range(0xC1, 0xD1)),
    "the key of bytes 200 to 231": bytes(range(200, 232)),
    "the marked footer key": b"Fk!qZ7wv%h2Tj-16",
    "the marked master key": b"Mk@5rYw!eT9_zGu~",
    "the key of a master key": b"footer master 16",
    "the key of another master key": b"column master 1!",
    "a passphrase": "correct horse battery stäple".encode(),
    "the marked passphrase": b"Zx9!kQ2vLw8@mN4p",
    "a passphrase in the wrong place": b"hunter2-hunter2",
    "the marked private key": b"Pk#3tXw&qR8_vJz5-hY6@nB2!dG9~mC4",
}
"""Keys and passphrases that several test files use, or which stand out.

Not the bytes 1 to 16, 24 or 32, which some use: columns that count hold them, too. Those made of
digits are searched everywhere; nothing else of the suite happens to have them.
"""

SHOWING: tuple[type, ...] = (
    modcrypt.Key,
    modcrypt.ags1.StandardKeyMetadata,
    modcrypt.FileEncryptionProperties,
    modcrypt.FileDecryptionProperties,
    modcrypt.KeyTools,
    modcrypt.Policy,
    modcrypt.Keyring,
    modcrypt.Identity,
    modcrypt.SigningKey,
    modcrypt.kms.AuditEvent,
    modcrypt.jobs.ScannedKey,
    modcrypt.jobs.RotatedFile,
    KeyedEncryption,
    EnvironmentKms,
    KeyWrapper,
    KeyMaterial,
    RecipientMaterial,
    IdentityKeys,
    Kek,
    ColumnKey,
    FileCipher,
)
"""Classes whose `__repr__` is searched."""


def spellings(secret: bytes) -> set[bytes]:
    """Spell a secret as files, programs and Python do."""
    out = {secret, secret.hex().encode(), secret.hex().upper().encode(), secret.hex(" ").encode()}
    out |= {repr(secret)[2:-1].encode(), repr(list(secret))[1:-1].encode()}
    out |= {"".join(f"\\x{byte:02x}" for byte in secret).encode()}
    out |= {urllib.parse.quote(secret).encode()}
    for at in range(3):  # wherever it begins among base64's groups of three bytes
        # Letters that the bytes around it have a part in are left out.
        letters = slice(-(-8 * at // 6), (at + len(secret)) * 8 // 6)
        around = bytes(at) + secret
        out |= {way(around)[letters] for way in (base64.b64encode, base64.urlsafe_b64encode)}
    with suppress(UnicodeDecodeError):
        out.add(json.dumps(secret.decode())[1:-1].encode())
    return out


# --- what may show a key -------------------------------------------------------------------------


@dataclass(frozen=True)
class Allowance:
    """Something that holds a key on purpose, and is not searched."""

    channel: str
    reason: str
    applies: Callable[[bytes], bool]


def _clear_keyring(data: bytes) -> bool:
    try:
        found = json.loads(data)
    except ValueError:
        return False
    formats = ("modcrypt-keyring", "modcrypt-identity", "modcrypt-signing-key")
    if not isinstance(found, dict) or found.get("format") not in formats:
        return False
    return found.get("protection") == "none"


ALLOWED = (
    Allowance(
        "temporary",
        "a keyring or identity in the clear is one that its owner asked to have so, mode 0600",
        _clear_keyring,
    ),
)

DELIBERATE = {
    "test_no_key_and_no_credential_is_logged_though_boto3_alone_would": (
        "log",
        "it shows what a client of boto3 logs that is not modcrypt's",
    ),
    "test_azures_client_logs_no_key_at_debug": (
        "log",
        "it shows what a client of Azure's logs that is not modcrypt's",
    ),
    **dict.fromkeys(
        (
            "test_the_text_of_a_google_stub_that_repeats_the_key_is_not_chained",
            "test_an_azure_error_that_repeats_the_key_is_not_chained",
            "test_an_azure_answer_that_is_cut_short_is_not_chained",
        ),
        ("exception", "the stub's own error is a context that is suppressed, and not shown"),
    ),
    **dict.fromkeys(
        (
            "test_a_forked_process_reads_on_though_its_parents_threads_are_not_there",
            "test_an_interrupt_while_several_threads_open_blocks_is_just_that",
            "test_a_view_and_a_file_go_on_in_a_forked_process",
        ),
        ("argument", "the program is the test's own, and not modcrypt's"),
    ),
}
"""Tests that show a key on purpose: in which channel, and why."""


@dataclass(frozen=True)
class Finding:
    """A key where none should be."""

    channel: str
    key: str
    where: str

    def __str__(self) -> str:
        return f"{self.channel}: {self.key} in {self.where}"


class Watch:
    """Searches what it is given, and keeps what it finds."""

    def __init__(self, keys: Mapping[str, bytes] = KEYS) -> None:
        # Keys that only differ at their ends share spellings in base64.
        self._spelt: dict[bytes, list[str]] = {}
        for name, key in keys.items():
            for text in spellings(key):
                self._spelt.setdefault(text, []).append(name)
        self._longest = max(map(len, self._spelt))
        assert min(map(len, self._spelt)) >= 2 * WORD - 1, "a spelling may hold no whole word"
        parts = (text[at : at + WORD] for text in self._spelt for at in range(WORD))
        self._words = {word for part in parts for word in _split_words(part)}
        self._found: list[Finding] = []
        self.searched: dict[str, int] = {}

    def search(self, channel: str, where: str, data: str | bytes) -> None:
        """Search what has passed by a channel."""
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogatepass")
        self.searched[channel] = self.searched.get(channel, 0) + 1
        found = self._find(data)
        if found and any(each.channel == channel and each.applies(data) for each in ALLOWED):
            return
        for name in sorted(found):
            self.add(Finding(channel, name, where))

    def holds_key(self, text: str) -> bool:
        """Return whether a text holds a key, without taking note of it."""
        return bool(self._find(text.encode("utf-8", "surrogatepass")))

    def _find(self, data: bytes) -> set[str]:
        if self._words.isdisjoint(_split_words(data)):  # as it nearly always is
            return set()
        return {name for text, names in self._spelt.items() if text in data for name in names}

    def add(self, finding: Finding) -> None:
        """Take note of a key where none should be."""
        self._found.append(finding)

    def search_error(self, error: BaseException | None, where: str) -> None:
        """Search an exception and all that it is chained to."""
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            self.search("exception", where, format_error(error))
            error = error.__cause__ or error.__context__

    def search_file(self, where: str, read: Callable[[int], bytes]) -> None:
        """Search a temporary file."""
        end, left = b"", MAX_FILE
        while piece := read(min(PIECE, left)):
            self.search("temporary", where, end + piece)
            end, left = piece[-self._longest :], left - len(piece)

    def take(self) -> list[Finding]:
        """Return the findings since the last call."""
        found, self._found = self._found, []
        return found

    @contextmanager
    def expecting(self) -> Iterator[list[Finding]]:
        """Yield a list of the findings in the block, which fail no test."""
        before, self._found = self._found, []
        found: list[Finding] = []
        try:
            yield found
        finally:
            found += self._found
            self._found = before


def _split_words(data: bytes) -> memoryview[int]:
    """Return the words of some data; a spelling in it holds at least one of them whole."""
    return memoryview(data)[: len(data) // WORD * WORD].cast("Q")


def format_error(error: BaseException) -> str:
    """Return the text of an exception with its notes and attributes."""
    lines = [type(error).__name__]
    for way in (str, repr):
        try:
            lines.append(way(error))
        except Exception as fault:  # an exception of a test's that can't be shown
            lines.append(type(fault).__name__)
    return "\n".join([*lines, *map(str, getattr(error, "__notes__", ()))])


# --- channels ------------------------------------------------------------------------------------


class _Handler(logging.Handler):
    """Searches log records as they are formatted; what they were raised by, too."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(logging.NOTSET)
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        where = f"a record of the logger {record.name}"
        try:
            text = record.getMessage()
        except Exception:  # logging itself says so on stderr
            text = f"{record.msg} {record.args}"
        self._watch.search("log", where, text)
        if record.exc_info:
            self._watch.search_error(record.exc_info[1], where)


def _replace(cls: Any, method: str, by: Callable[..., Any]) -> None:
    setattr(cls, method, by)


def _watch_errors(watch: Watch) -> None:
    def init_and_search(self: modcrypt.ModcryptError, *args: object) -> None:
        super(modcrypt.ModcryptError, self).__init__(*args)
        watch.search("exception", f"a {type(self).__name__}", format_error(self))

    _replace(modcrypt.ModcryptError, "__init__", init_and_search)
    leave = pytest.RaisesExc.__exit__

    @functools.wraps(leave)
    def exit_and_search(self: Any, kind: Any, error: BaseException | None, trace: Any) -> bool:
        __tracebackhide__ = True
        if isinstance(error, modcrypt.ModcryptError | ValueError | TypeError | OSError):
            watch.search_error(error, f"a {type(error).__name__} that pytest.raises caught")
        return leave(self, kind, error, trace)

    _replace(pytest.RaisesExc, "__exit__", exit_and_search)


def _watch_reprs(watch: Watch) -> None:
    for cls in SHOWING:
        if any("__repr__" in vars(base) for base in cls.__mro__[:-1]):  # not only `object` has one
            _replace(cls, "__repr__", _wrap_repr(watch, cls))


def _wrap_repr(watch: Watch, cls: type) -> Callable[[object], str]:
    original: Any = cls.__repr__

    @functools.wraps(original)
    def repr_and_search(self: object) -> str:
        text: str = original(self)
        watch.search("repr", f"the repr of a {cls.__name__}", text)
        return text

    return repr_and_search


def _watch_programs(watch: Watch) -> None:
    """Search what programs printed, where a test has asked for it."""

    def after(cls: Any, *names: str) -> None:
        original = cls.__init__

        @functools.wraps(original)
        def init_and_search(self: Any, *args: Any, **options: Any) -> None:
            original(self, *args, **options)
            for name in names:
                data = getattr(self, name, None)
                if isinstance(data, str | bytes):
                    watch.search("output", f"{name} of a program", data)

        _replace(cls, "__init__", init_and_search)

    after(subprocess.CompletedProcess, "stdout", "stderr")
    after(click.testing.Result, "stdout_bytes", "stderr_bytes")
    read = pytest.CaptureFixture.readouterr

    @functools.wraps(read)
    def readouterr(self: Any) -> Any:
        captured = read(self)
        for name in ("out", "err"):
            watch.search("output", f"std{name} of the test", getattr(captured, name))
        return captured

    _replace(pytest.CaptureFixture, "readouterr", readouterr)


_TEMPORARY = re.compile(r"\..*\.tmp|.*\.new")
"""Names of modcrypt's temporary files: of storage, of keyrings, of the command line."""


def _watch_events(watch: Watch) -> Callable[[], None]:
    """Search temporary files and process arguments; gives what ends that."""
    inside = threading.local()
    handlers: dict[str, Callable[..., None]] = {}
    # Tests put others in their place, which fail or count.
    opened, read, close = os.open, os.read, os.close

    def leaving(source: Any, *more: Any) -> None:
        if isinstance(source, int):
            return
        name = os.fsdecode(source)
        if not _TEMPORARY.fullmatch(os.path.basename(name)):
            return
        folder = more[-2] if len(more) == 3 else more[0]  # rename and link have two folders
        try:
            fd = opened(
                name,
                os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK,
                dir_fd=None if folder == -1 else folder,
            )
        except OSError:  # it isn't there
            return
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                watch.search_file(name, lambda size: read(fd, size))
        finally:
            close(fd)

    def starting(_: Any, args: Any, *more: Any) -> None:
        parts = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
        texts = [os.fsencode(part) for part in parts]
        # A test's own program, `python -c SOURCE`, is the test's text and may hold its keys.
        if len(texts) > 2 and os.fsdecode(texts[0]) == sys.executable and b"-c" in texts:
            del texts[texts.index(b"-c") + 1]
        watch.search("argument", "the arguments of a process", b"\0".join(texts))

    handlers |= dict.fromkeys(("os.rename", "os.link", "os.remove"), leaving)
    handlers |= {"subprocess.Popen": starting, "os.posix_spawn": starting}
    handlers |= {"os.exec": starting, "os.system": lambda command: starting(None, command)}

    def hook(event: str, args: tuple[Any, ...]) -> None:
        handler = handlers.get(event)
        if handler is None or getattr(inside, "on", False):
            return
        inside.on = True
        try:
            handler(*args)
        except Exception as error:  # it must not change what the tested code does
            watch.add(Finding("watch", "its own fault", f"{event}: {error!r}"))
        finally:
            inside.on = False

    sys.addaudithook(hook)  # for as long as the process lives
    return handlers.clear


def search_leftovers(watch: Watch, folder: Path) -> None:
    """Search the temporary files that processes left which were killed."""
    for above, _, names in os.walk(folder):
        for name in names:
            path = Path(above, name)
            if _TEMPORARY.fullmatch(name) and path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    watch.search_file(os.fspath(path), file.read)


# --- the suite -----------------------------------------------------------------------------------

WATCH = Watch()
"""The one that is on while tests run."""


class Plugin:
    """Fails the test during which a key was found."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        handler = _Handler(watch)
        logging.getLogger().addHandler(handler)
        logging.getLogger("modcrypt").setLevel(logging.DEBUG)
        _watch_errors(watch)
        _watch_reprs(watch)
        _watch_programs(watch)
        self._end = _watch_events(watch)

    def pytest_unconfigure(self) -> None:
        self._end()

    def pytest_make_parametrize_id(self, val: object, argname: str) -> str | None:
        # Names of tests are printed, as of the slowest ones.
        shown = isinstance(val, str | bytes)
        return argname if shown and self._watch.holds_key(str(val)) else None

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._watch.search("output", "the name of a test", item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None:
            self._watch.search_error(call.excinfo.value, f"what ended {report.when}")
        for title, text in report.sections:
            # Records are searched as they are made, and without the lines of tests in tracebacks.
            if title.endswith(f" {report.when}") and not title.startswith("Captured log"):
                self._watch.search("output", title, text)
        passed, _ = DELIBERATE.get(getattr(item, "originalname", item.name), ("", ""))
        found = [finding for finding in self._watch.take() if finding.channel != passed]
        if found:
            _fail(report, found)
        return report


def _fail(report: pytest.TestReport, found: list[Finding]) -> None:
    text = "\n".join(["a key is where none should be:", *dict.fromkeys(map(str, found))])
    if report.failed:
        report.sections.append(("Secret watch", text))
    else:
        report.outcome, report.longrepr = "failed", text
        vars(report).pop("wasxfail", None)


@pytest.fixture(scope="session", autouse=True)
def leftovers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Search what all tests have left when the last one is done."""
    yield
    search_leftovers(WATCH, tmp_path_factory.getbasetemp())


def pytest_configure(config: pytest.Config) -> None:
    """Turn the watch on; to be a hook of the suite's conftest."""
    config.pluginmanager.register(Plugin(WATCH), "secret-watch")
