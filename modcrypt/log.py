"""The logger `modcrypt`, which is silent unless a program configures it, and never logs a key."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("modcrypt")
# Without a handler of its own, Python would print warnings of a silent logger on stderr.
LOGGER.addHandler(logging.NullHandler())
