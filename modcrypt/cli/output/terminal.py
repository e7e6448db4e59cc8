"""The abilities of a stream: the width of a terminal, bold text and colours."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
from typing import TextIO

from modcrypt.errors import printable

BOLD, RED = "1", "31"


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream, which is None if it is closed, is a terminal."""
    return stream is not None and stream.isatty()


def width_of(stream: TextIO | None) -> int | None:
    """Return the number of columns of a terminal; None for a file or pipe."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def paint(text: str, style: str, stream: TextIO | None) -> str:
    """Return a text in a style, if a stream shows styles and NO_COLOR is not set (no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain or not text or not is_terminal(stream):
        return text
    return f"\x1b[{style}m{text}\x1b[0m"


def wrap_words(text: str, stream: TextIO | None) -> str:
    """Return a text in lines that end between words, if a stream is a terminal."""
    if (width := width_of(stream)) is None:
        return text
    return textwrap.fill(
        text, max(width, 20), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


class WarningLines(logging.Handler):
    """A handler that prints the library's warnings, such as those about unusable parts of files."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning as a line on stderr."""
        if sys.stderr is not None:
            line = f"modcrypt: warning: {printable(record.getMessage())}"
            print(wrap_words(line, sys.stderr), file=sys.stderr)
