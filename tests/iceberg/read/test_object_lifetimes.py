"""Objects that PyArrow's threads still hold when a script ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def run_script(script: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize("what", ["file.read_buffer(3)", "file"])
def test_the_interpreter_ends_when_the_last_thread_has_let_go(what: str) -> None:
    script = f"""
        import atexit, threading, weakref

        atexit.register(lambda: print(gone() is None))  # called after those that come later

        from modcrypt.iceberg.read import pyarrow_decryption
        from modcrypt.iceberg.read.pyarrow_decryption import StoredFile
        from modcrypt.io.sources import MemorySource

        pyarrow_decryption.MAX_WAIT = 200  # a busy machine may let the thread sleep longer

        ending = threading.Event()
        atexit.register(ending.set)  # called first

        def hold(things):
            ending.wait()
            things.clear()

        file = StoredFile(MemorySource(b"abc", "a"))
        things = [{what}]
        gone = weakref.ref(things[0])
        del file
        threading.Thread(target=hold, args=(things,), daemon=True).start()
    """
    assert run_script(script) == (0, "True")


def test_what_a_script_has_left_open_is_not_waited_for_long() -> None:
    script = """
        from modcrypt.iceberg.read.pyarrow_decryption import StoredFile
        from modcrypt.io.sources import MemorySource

        file = StoredFile(MemorySource(b"abc", "a"))
        print(file.read())
    """
    assert run_script(script) == (0, "b'abc'")
