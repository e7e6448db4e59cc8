"""Files and environment variables that contain a key, for the constructors of `Key`."""

from __future__ import annotations

import os

from modcrypt.errors import KeyAccessDeniedError, KeyMaterialError, KeyNotFoundError
from modcrypt.io.private_files import check_owner, check_private
from modcrypt.keys.encoding import MAX_KEY_TEXT, decode_key
from modcrypt.keys.lookalikes import show_name
from modcrypt.runtime.tracebacks import hide_frames


@hide_frames
def read_key_file(
    path: str | os.PathLike[str], what: str, limit: int = MAX_KEY_TEXT
) -> tuple[bytes, os.stat_result]:
    """Return the content of a file, up to one byte more than `limit`, and its status.

    Messages call the file `what`.

    Raises:
        KeyNotFoundError: It does not exist.
        KeyAccessDeniedError: It may not be read.
        KeyMaterialError: It cannot be read, as a folder.
    """
    try:
        with open(path, "rb") as file:
            return file.read(limit + 1), os.fstat(file.fileno())
    except (FileNotFoundError, NotADirectoryError):
        raise KeyNotFoundError(f"{what} does not exist") from None
    except PermissionError:
        raise KeyAccessDeniedError(f"{what} may not be read") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a file name"
        raise KeyMaterialError(f"{what}: {reason}") from None


@hide_frames
def key_in_file(path: str | os.PathLike[str]) -> bytes:
    """Return the key in a file that only its owner may use; raise as `Key.from_file`."""
    what = f"the key file {show_name(path)}"
    data, status = read_key_file(path, what)
    check_owner(status, what)
    check_private(status, f"{what} holds a key")
    return decode_key(data, what)


@hide_frames
def key_in_variable(name: str) -> bytes:
    """Return the key in an environment variable; raise as `Key.from_env`."""
    value, shown = os.environ.get(name), show_name(name)
    if not value:
        raise KeyNotFoundError(f"the environment variable {shown} is not set")
    return decode_key(os.fsencode(value), f"the environment variable {shown}", raw=False)
