"""Programs in Python, run in a fork of this process: a real process without the start of Python.

It has streams, descriptors, signals, a terminal, a session and a folder of its own, and ends as
the interpreter does. What the start itself does, one real process per command tests.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any


def as_process(
    command: Sequence[str | Path],
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    *,
    fork: bool = True,
) -> dict[str, Any]:
    """Return arguments of `subprocess.Popen` and `run` that run a command in a fork.

    Args:
        command: `[PROGRAM, *arguments]` or `[sys.executable, "-c", script, *arguments]`.
        env: Environment of the process.
        pass_fds: Descriptors that stay open besides the standard streams.
        fork: Whether to fork; if not, a new interpreter starts.
    """
    main = partial(_run, [str(part) for part in command], env, pass_fds) if fork else None
    return {"args": command, "env": env, "pass_fds": pass_fds, "preexec_fn": main}


def _run(command: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int]) -> None:
    """Run a command in the child that `subprocess` has forked, and end it; never return."""
    code = 1
    try:
        _start(env, pass_fds)
        main, sys.argv = _main(command)
        main()
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException:
        traceback.print_exc()
    finally:  # as the interpreter ends
        vars(threading)["_shutdown"]()  # waits for threads
        os._exit(code if _flush() else 120)


def _start(env: Mapping[str, str], pass_fds: Sequence[int]) -> None:
    """Undo what belongs to the process of the tests."""
    gc.freeze()  # its objects are not collected again in each fork
    faulthandler.disable()
    _reset_signals()
    for before, after in itertools.pairwise((2, *sorted(pass_fds), os.sysconf("SC_OPEN_MAX"))):
        os.closerange(before + 1, after)
    os.environ.clear()
    os.environ.update(env)
    logging.root.handlers.clear()
    warnings.resetwarnings()
    warnings.simplefilter(env.get("PYTHONWARNINGS", "default"))  # type: ignore[arg-type]
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(fd)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _reset_signals() -> None:
    """Set the handlers that the interpreter starts with; ignored signals stay ignored."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _stream(fd: int) -> Any:
    errors = "backslashreplace" if fd == 2 else "strict"
    mode = "w" if fd else "r"
    stream: Any = open(fd, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    stream.reconfigure(line_buffering=fd == 2 or stream.isatty())
    return stream


def _main(command: Sequence[str]) -> tuple[Callable[[], object], list[str]]:
    if command[:2] == [sys.executable, "-c"]:
        code = compile(command[2], "<string>", "exec")
        return partial(exec, code, {"__name__": "__main__"}), ["-c", *command[3:]]
    from modcrypt.cli import run

    return run, list(command)


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _flush() -> bool:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return False
    return True
