"""Keys of sixteen bytes, which `secret_watch` looks for in all that is shown or left."""

from __future__ import annotations

FOOTER_KEY = b"0123456789012345"
COLUMN_KEY = b"1234567890123450"
OTHER_KEY = b"1234567890123451"
