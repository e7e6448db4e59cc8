"""Steps that probes share: what a peer is asked to read, and with which keys.

A probe is called with the folder of samples, and prints a line of JSON for each step.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

os.chdir(sys.argv[1])
with open("keys.json") as _file:
    KEYS = {name: key.encode() for name, key in json.load(_file).items()}
FOOTER_KEY, AAD_PREFIX = KEYS["footer"], KEYS["aad_prefix"]
COLUMN_KEYS = {name: KEYS[name] for name in ("name", "score")}
ONE_COLUMN_KEY = {"name": KEYS["name"]}

Step = Callable[[], Any]
Read = Callable[..., Any]


def run(steps: dict[str, Step]) -> None:
    """Run steps, whose names have the form `case: step`."""
    for name, step in steps.items():
        try:
            seen = _describe(step())
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
        print(json.dumps({"step": name, "seen": seen}), flush=True)


def _describe(result: Any) -> str:
    shape = getattr(result, "shape", None)
    return str(result) if shape is None else " x ".join(map(str, shape))


def keyless_steps(read: Read, count: Read | None = None) -> dict[str, Step]:
    """Return the steps that need no key.

    Args:
        read: Function of a path and names of columns (None for all), which returns a table.
        count: Function of a path, which returns the number of rows; None to leave that out.
    """
    footer = "plaintext-footer.parquet"
    number = {"plaintext-footer: no key, number of rows": partial(count, footer)} if count else {}
    return number | {
        "no-key: encrypted footer": partial(read, "uniform.parquet", None),
        "plaintext-footer: no key, plaintext column": partial(read, footer, ["city"]),
        "plaintext-footer: no key, column under the footer key": partial(read, footer, ["id"]),
        "plaintext-footer: no key, column with a key": partial(read, footer, ["name"]),
        "key-material: folder, no key": partial(read, "key-material/", None),
        "mixed-folder: no key": partial(read, "mixed/", None),
    }


def keyed_steps(read: Read) -> dict[str, Step]:
    """Return the steps with a footer key.

    Args:
        read: Function of a path and the arguments `footer_key` and `aad_prefix`.
    """
    prefix, footer_key = AAD_PREFIX, FOOTER_KEY
    read_with = partial(read, footer_key=footer_key, aad_prefix=None)
    stored, supplied = "aad-stored.parquet", "aad-supplied.parquet"
    return {
        "all-keys: footer key": partial(read_with, "uniform.parquet"),
        "key-material: one file": lambda: read_with(
            "key-material/part-0.parquet", footer_key=material_key("part-0.parquet")
        ),
        "aad-stored: no prefix": partial(read_with, stored),
        "aad-stored: right prefix": partial(read_with, stored, aad_prefix=prefix),
        "aad-stored: other prefix": partial(read_with, stored, aad_prefix=b"other"),
        "aad-supplied: no prefix": partial(read_with, supplied),
        "aad-supplied: right prefix": partial(read_with, supplied, aad_prefix=prefix),
        "aad-supplied: other prefix": partial(read_with, supplied, aad_prefix=b"other"),
        "aad-empty: file without prefix": partial(read_with, "uniform.parquet", aad_prefix=b""),
        "aad-empty: file with prefix": partial(read_with, supplied, aad_prefix=b""),
        "ctr: footer key": partial(read_with, "ctr.parquet"),
        "data-page-v2: footer key": partial(read_with, "data-page-v2.parquet"),
        "restored: footer key": partial(read_with, "restored.parquet"),
        "mixed-folder: footer key": partial(read_with, "mixed/"),
        "row-groups-32768: footer key": partial(read_with, "row-groups-32768.parquet"),
    }


def material_key(name: str) -> bytes:
    """Return the footer key of a file, from the key material beside it."""
    with open(f"key-material/_KEY_MATERIAL_FOR_{name}.json") as file:
        return base64.b64decode(json.loads(json.load(file)["footerKey"])["wrappedDEK"])
