"""The logger `modcrypt`, which is silent unless a program configures it, and never logs a key."""

from __future__ import annotations

import logging
from collections.abc import Sequence

LOGGER = logging.getLogger("modcrypt")
# Without a handler of its own, Python would print warnings of a silent logger on stderr.
LOGGER.addHandler(logging.NullHandler())


def log_ignored(name: str, reasons: Sequence[object]) -> None:
    """Log a warning about indexes and bloom filters of a file that cannot be used, if any."""
    if reasons:
        more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        LOGGER.warning("%s: ignoring an unusable part: %s%s", name, reasons[0], more)
