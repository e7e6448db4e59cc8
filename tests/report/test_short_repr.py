"""Options show what differs from their defaults, and no keys."""

from __future__ import annotations

from typing import Any

import modcrypt as mc
from tests.support.cases import each_case

KEY = mc.Key(b"Zq7!marker-of-16")


@each_case(
    ("options", "shown"),
    [
        (mc.FileDecryptionProperties(), "FileDecryptionProperties()"),
        (
            mc.FileEncryptionProperties(footer_key=KEY, column_keys={"a": KEY}, aad_prefix=b"x"),
            f"FileEncryptionProperties(footer_key={KEY!r}, column_keys={{'a': {KEY!r}}}, "
            "aad_prefix=b'x')",
        ),
        (mc.Settings(footer_key="env:KEY"), "Settings(footer_key='env:KEY')"),
        (
            mc.Policy(footer_key="kf", column_keys={"kc": ["a"]}, plaintext_footer=True),
            "Policy(footer_key='kf', column_keys={'kc': ('a',)}, plaintext_footer=True)",
        ),
    ],
)
def test_defaults_are_left_out(options: Any, shown: str) -> None:
    assert repr(options) == shown
    assert "marker" not in shown
