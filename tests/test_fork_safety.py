"""A forked child finds every lock free, whichever thread of its parent held it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt import Key, Keyring, KeyTools, Policy
from modcrypt.aead import GcmCipher
from modcrypt.ags1 import Ags1Writer, decrypt
from modcrypt.kms.wrapping import KeyWrapper
from modcrypt.runtime import fork_safety
from tests.support.kms.memory_kms import MemoryKms

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SECONDS = 20
"""After which a child that waits for a lock is taken to wait for ever."""


def in_child(work: Callable[[], object]) -> None:
    """Have a forked child do something, which must not fail, nor wait for ever."""
    child = os.fork()
    if child == 0:
        done = threading.Thread(target=lambda: (work(), os._exit(0)), daemon=True)
        done.start()
        done.join(SECONDS)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def fork_while_locked(locks: list[Any], work: Callable[[], object]) -> None:
    """Fork while another thread holds locks."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            over.wait(3 * SECONDS)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(SECONDS)
    try:
        in_child(work)
    finally:
        over.set()
        holder.join()


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock, threading.Condition])
def test_a_lock_is_free_in_a_child(make: Callable[[], Any]) -> None:
    lock = fork_safety.fork_safe(make())
    fork_while_locked([lock], lambda: lock.__enter__())


def test_an_event_works_in_a_child() -> None:
    event: Any = fork_safety.fork_safe(threading.Event())
    fork_while_locked([event._cond], event.set)


def test_a_cached_property_is_found_in_a_child() -> None:
    entered, over = threading.Event(), threading.Event()

    class Slow:
        @fork_safety.cached_property
        def value(self) -> int:
            if not entered.is_set():
                entered.set()
                over.wait(3 * SECONDS)
            return 7

    thread = threading.Thread(target=lambda: Slow().value)
    thread.start()
    assert entered.wait(SECONDS)
    try:
        in_child(lambda: Slow().value)
    finally:
        over.set()
        thread.join()


def test_threads_do_not_wait_for_a_cached_property_of_another_object() -> None:
    class Node:
        def __init__(self, inner: Node | None) -> None:
            self.inner = inner

        @fork_safety.cached_property
        def depth(self) -> int:
            if self.inner is None:
                return 0
            found: list[int] = []
            inner = self.inner
            thread = threading.Thread(target=lambda: found.append(inner.depth), daemon=True)
            thread.start()
            thread.join(SECONDS)
            return found[0] + 1

    assert Node(Node(None)).depth == 1


def test_key_services_files_and_keys_work_in_a_child_whatever_was_locked(tmp_path: Path) -> None:
    """All locks that exist are held, those of the parent's objects and of modules."""
    path = tmp_path / "f.parquet"
    ring = Keyring.create(tmp_path / "k", passphrase="pw")
    ring.create_key("kf")
    tools, table = KeyTools(ring), pa.table({"a": [1, 2, 3]})
    mc.write_table(table, path, tools.encryption(Policy(footer_key="kf")))
    cipher = GcmCipher(Key(b"k" * 16))
    cipher.encrypt(b"x", b"")
    wrapper = KeyWrapper(MemoryKms(), cache_lifetime=600)
    wrapper.get_writing_kek("kf")
    file = mc.ParquetFile(path, tools.decryption())
    file.read()
    ring.change_passphrase("pw")  # so that the child derives a key
    seen = Keyring(ring.path, passphrase="pw")
    seen._states._state = ring._states._state
    seen._states.passphrase_keys._known.clear()

    def work() -> None:
        assert file.read() == table
        assert mc.read_table(path, tools.decryption()) == table
        mc.write_table(table, path, tools.encryption(Policy(footer_key="kf")))
        assert seen.rotate_key("kf").version == 2
        cipher.encrypt(b"y", b"")
        wrapper.get_writing_kek("kf")

    locks = [lock for lock in fork_safety._locks if type(lock) is type(threading.Lock())]
    assert len(locks) > 5
    fork_while_locked(locks, work)
    file.close()


def test_a_child_encrypts_under_a_kek_of_its_own() -> None:
    """Parent and child would each count only their own uses of a KEK that they share."""
    wrapper = KeyWrapper(MemoryKms(), cache_lifetime=600)
    kek = wrapper.get_writing_kek("kf")

    def work() -> None:
        assert wrapper.get_writing_kek("kf") is not kek

    in_child(work)
    assert wrapper.get_writing_kek("kf") is kek


NUMBERS = pa.table({"a": [1, 2, 3]})
WRITERS: dict[str, Callable[[Path], tuple[Any, Callable[[], object]]]] = {
    "parquet": lambda path: (
        writer := mc.ParquetWriter(path, NUMBERS.schema, Key(b"k" * 16), threads=2),
        lambda: writer.write_table(NUMBERS),
    ),
    "ags1": lambda path: (
        writer := Ags1Writer(path, Key(b"k" * 16), block_length=4, threads=2),
        lambda: writer.write(b"12345"),
    ),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("named", [False, True])
def test_a_child_neither_writes_nor_removes_its_parents_file(
    name: str, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:  # as on file systems without unnamed files
        monkeypatch.setattr(os, "O_TMPFILE", 0, raising=False)
    writer, write = WRITERS[name](tmp_path / "file")
    write()

    def work() -> None:
        for use in (write, writer.close):
            with pytest.raises(ValueError, match="before a fork"):
                use()
        writer.__exit__(SystemExit, SystemExit(), None)

    in_child(work)
    writer.close()
    data = (tmp_path / "file").read_bytes()
    if name == "parquet":
        assert mc.read_table(data, Key(b"k" * 16)) == NUMBERS
    else:
        assert decrypt(data, Key(b"k" * 16), length=writer.encrypted_length) == b"12345"
