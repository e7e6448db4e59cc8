"""The program `modcrypt`, run in this process or as users run it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from modcrypt.cli import app
from tests.support.cli.forked import as_process

PROGRAM = Path(sys.executable).with_name("modcrypt")
KEY = ("--key", "file:footer.key")
NAME_KEY = ("--column-key", "name=file:name.key")
Answer = subprocess.CompletedProcess[str]


def private(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def to_key(folder: Path, key: str) -> tuple[str, str]:
    """Write a policy that names a key file, and return the option for new files under it."""
    (folder / f"{key}.toml").write_text(f'footer_key = "file:{key}"\n')
    return "--to", f"{key}.toml"


def environment(**more: str) -> dict[str, str]:
    out = ("NO_COLOR", "FORCE_COLOR", "MODCRYPT_PASSPHRASE")
    kept = {k: v for k, v in os.environ.items() if k not in out}
    return {**kept, "PYTHONWARNINGS": "error", "TERM": "xterm", **more}


def run(
    folder: Path, *arguments: str, env: dict[str, str] | None = None, stdin: bytes | None = None
) -> Answer:
    """Run the command line in this process."""
    runner = CliRunner(env={"NO_COLOR": None, "FORCE_COLOR": None, **(env or {})})
    with contextlib.chdir(folder):
        result = runner.invoke(
            app.program, arguments, stdin, prog_name="modcrypt", catch_exceptions=False
        )
    return Answer(arguments, result.exit_code, result.stdout, result.stderr)


def run_program(
    folder: Path,
    *arguments: str,
    env: dict[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    fork: bool = True,
    **more: Any,
) -> Answer:
    """Run the program in a process of its own, in a fork unless `fork` is false."""
    return subprocess.run(
        **as_process([PROGRAM, *arguments], environment(**(env or {})), pass_fds, fork=fork),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        **more,
    )


def run_on_terminal(
    folder: Path,
    command: Sequence[str | Path],
    stream: str,
    columns: int = 0,
    env: dict[str, str] | None = None,
) -> tuple[subprocess.CompletedProcess[bytes], str]:
    """Run a command in a fork, a stream of which is a terminal; return it, and what that shows."""
    controller, terminal = pty.openpty()
    if columns:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    streams: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    process = as_process(command, environment() if env is None else env)
    answer = subprocess.run(**process, cwd=folder, check=False, **{**streams, stream: terminal})
    os.close(terminal)
    return answer, read_terminal(controller)


def read_terminal(controller: int) -> str:
    """Return what a terminal shows until its other side is closed."""
    shown = b""
    with os.fdopen(controller, "rb", buffering=0) as screen, contextlib.suppress(OSError):
        while data := screen.read(65536):  # OSError: how Linux says that the other side is closed
            shown += data
    return shown.decode().replace("\r\n", "\n")


SHOW_PROGRESS = (
    "import modcrypt.cli.output.progress as progress\n"
    "progress.SHOW_AFTER = progress.REFRESH_EVERY = 0\n"
    "from modcrypt.cli import run\n"
    "run()"
)
"""The program, which shows progress at once."""


def examples_of(folder: Path, *command: str) -> list[list[str]]:
    """Return the arguments of the examples in a command's help text."""
    text = run(folder, *command, "--help-all").stdout.replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("  modcrypt ")]


def import_modules(*commands: Sequence[str]) -> tuple[list[int], set[str]]:
    """Run commands in one new interpreter; return their exit codes and all modules it loads."""
    answer = subprocess.run(
        [sys.executable, "-c", _RUN_ALL, json.dumps(commands)],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    codes, modules = json.loads(answer.stdout.splitlines()[-1])
    return codes, set(modules)


_RUN_ALL = """
import json, sys
from modcrypt.cli import run
codes = []
for sys.argv[1:] in json.loads(sys.argv[1]):
    try:
        run()
    except SystemExit as end:
        codes.append(end.code)
print(json.dumps([codes, list(sys.modules)]))
"""


def check_failure(answer: Answer, code: int, word: str) -> str:
    """Check an answer's exit code and its one line on stderr; return the message."""
    assert (answer.returncode, answer.stdout) == (code, "")
    start = f"modcrypt: error: {word}: "
    assert answer.stderr.startswith(start)
    assert answer.stderr.endswith("\n")
    assert answer.stderr.count("\n") == 1
    return answer.stderr[len(start) : -1]


def invoke(folder: Path, *arguments: str) -> Result:
    before = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(app.program, arguments)
    finally:
        os.chdir(before)


# The real program with a disk that takes its time, so that it can be met half-way. A signal ends
# what it takes: a test that comes late must not find the program done.
SLOW = """
import os, select, signal, sys, time
import modcrypt.io.sinks, modcrypt.cli.output.progress as progress

append = modcrypt.io.sinks.FdSink.append
def slowly(self, data):
    append(self, data)
    sys.stdout.write("writing\\n"), sys.stdout.flush()
    if select.select([signalled], [], [], SLEEP)[0]:
        time.sleep(0.5)  # in a thread, which the main one is to stop
SLEEP = float(sys.argv.pop(1))
progress.SHOW_AFTER = progress.REFRESH_EVERY = float(sys.argv.pop(1))
modcrypt.io.sinks.FdSink.append = slowly
signalled, signal_end = os.pipe()
os.set_blocking(signal_end, False)
signal.set_wakeup_fd(signal_end)
signal.signal(signal.SIGINT, signal.default_int_handler)  # may be ignored, as in a job of a shell
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from modcrypt.cli import run
run()
"""
