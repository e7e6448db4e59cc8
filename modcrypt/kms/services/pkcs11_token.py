"""Sessions on a PKCS#11 token: its module, its PIN and its errors."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from modcrypt.errors import (
    MAX_NAME,
    KeyAccessDeniedError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
    printable,
)
from modcrypt.io.private_files import only_root_can_write, read_secret
from modcrypt.keys import Secret
from modcrypt.runtime.extras import missing_extra
from modcrypt.runtime.fork_safety import fork_safe
from modcrypt.runtime.tracebacks import hide_frames

try:
    import pkcs11
    from pkcs11 import exceptions as token_errors
except ModuleNotFoundError as error:
    raise missing_extra("PKCS#11", "pkcs11") from error

__all__ = ["TokenSessions", "make_pin_source", "pkcs11", "token_errors"]

MAX_PIN = 255
"""Length limit of a PIN from a file, in bytes."""

_DENIED = (
    token_errors.PinIncorrect,
    token_errors.PinInvalid,
    token_errors.PinLenRange,
    token_errors.PinExpired,
    token_errors.PinLocked,
    token_errors.UserPinNotInitialized,
    token_errors.AnotherUserAlreadyLoggedIn,
    token_errors.UserTooManyTypes,
    token_errors.FunctionRejected,
)
_UNAVAILABLE = (
    token_errors.DeviceError,
    token_errors.DeviceMemory,
    token_errors.DeviceRemoved,
    token_errors.FunctionFailed,
    token_errors.GeneralError,
    token_errors.HostMemory,
    token_errors.SessionClosed,
    token_errors.SessionCount,
    token_errors.SessionHandleInvalid,
    token_errors.SlotIDInvalid,
    token_errors.TokenNotPresent,
    token_errors.TokenNotRecognised,
    token_errors.UserNotLoggedIn,
)


class TokenSessions:
    """Sessions on one token, logged in, for one thread at a time.

    `traits` identify the token, and `pin` returns the PIN at each login.
    """

    def __init__(
        self, module: str, traits: Mapping[str, str | bytes | int], pin: Callable[[], str]
    ) -> None:
        self.module, self._traits, self._pin = module, traits, pin
        self._refused = False
        self._process = os.getpid()
        self._seen = False
        self._session: Any = None

    @contextlib.contextmanager
    def open(self, what: str, writing: bool = False) -> Iterator[Any]:
        """Yield a session, to one thread at a time; convert the token's errors."""
        if os.getpid() != self._process:
            raise KeyRetrievalError(
                "this PKCS#11 client was opened before a fork, and sessions do not survive a fork; "
                "open the client again in this process"
            )
        with _lock:
            try:
                if self._session is None:
                    self._session = self._login()
                if writing:
                    with self._session.token.open(rw=True) as session:  # shares the login
                        yield session
                else:
                    yield self._session
            except ModcryptError:
                raise
            except token_errors.PKCS11Error as error:
                raise self._convert_error(error, what) from error

    @hide_frames
    def _login(self) -> Any:
        if self._refused:  # retrying a wrong PIN for every key would lock the token
            raise KeyAccessDeniedError(
                "the token refused the PIN; open the client again with another PIN"
            )
        try:
            token = _find_token(self.module, self._traits)
        except KeyNotFoundError as error:
            if self._seen:
                raise KmsUnavailableError("the PKCS#11 token was removed") from error
            raise
        self._seen = True
        pin = _check_pin(self._pin())
        try:
            return token.open(user_pin=pin)
        except token_errors.UserAlreadyLoggedIn:
            return token.open()
        except _DENIED:
            self._refused = True
            raise

    def _convert_error(self, error: token_errors.PKCS11Error, what: str) -> KeyRetrievalError:
        message = f"{what}: the token reports {type(error).__name__}"
        if isinstance(error, _DENIED):
            return KeyAccessDeniedError(message)
        if isinstance(error, token_errors.TokenWriteProtected | token_errors.SessionReadOnly):
            return KeyAccessDeniedError(message)
        self._session = None  # the next attempt logs in again
        if isinstance(error, _UNAVAILABLE):
            return KmsUnavailableError(message)
        return KeyRetrievalError(f"{message} {error}".rstrip())


def make_pin_source(pin: str | Callable[[], str] | None, source: str | None) -> Callable[[], str]:
    """Return a function that returns the PIN, which it reads again at each login."""
    if callable(pin):
        return pin
    if pin is not None:
        return Secret(pin)
    kind, _, name = (source or "env:MODCRYPT_PKCS11_PIN").partition(":")
    if kind == "file" and name:
        return lambda: _read_pin(name)
    if kind == "env" and name:
        return lambda: os.environ.get(name, "")
    raise ValueError("PKCS#11 URI: pin-source must be file:PATH or env:NAME")


def _read_pin(path: str) -> str:
    pin = read_secret(path, MAX_PIN + 3, "PIN file").rstrip(b"\r\n")
    if len(pin) > MAX_PIN:
        raise ValueError(f"the PIN file {path} is longer than {MAX_PIN} bytes")
    try:
        return pin.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the PIN file {path} is not UTF-8") from None


def _check_pin(pin: object) -> str:
    if not isinstance(pin, str):
        raise TypeError(f"a PIN must be str, not {type(pin).__name__}")
    if not pin:
        raise ValueError(
            "the PIN of the PKCS#11 token is missing: pass pin=, set pin-source in the URI, or set "
            "MODCRYPT_PKCS11_PIN"
        )
    if not pin.isprintable():  # includes surrogates, whose encoding error would repeat the PIN
        raise ValueError("the PIN of the PKCS#11 token contains unprintable characters")
    return pin


_started: dict[str, int] = {}  # module to the process that initialized it
_lock = fork_safe(threading.Lock())
"""Lock of all clients: python-pkcs11 initializes modules for use by one thread at a time
(C_Initialize without arguments), but releases the interpreter's lock during calls."""


def _load_library(module: str) -> Any:
    """Load a module; in a forked process, initialize it again, as PKCS#11 requires."""
    # Loading runs the module's code, and its path may come from a URI that someone else wrote. So
    # raise ValueError if others than root can write it, and the environment does not name it.
    if module != os.environ.get("MODCRYPT_PKCS11_MODULE") and not _is_of_root(module):
        raise ValueError(
            f"others than root can write the PKCS#11 module {printable(module, MAX_NAME)} or a "
            "folder above it; if its code may run here, set MODCRYPT_PKCS11_MODULE to this path"
        )
    try:
        library = pkcs11.lib(module)
        if _started.setdefault(module, os.getpid()) != os.getpid():
            with contextlib.suppress(token_errors.PKCS11Error):
                library.finalize()  # some modules detect the fork and refuse
            library.initialize()
            _started[module] = os.getpid()
    except token_errors.PKCS11Error as error:
        raise KeyRetrievalError(f"PKCS#11 module {module} cannot be loaded") from error
    return library


def _is_of_root(module: str) -> bool:
    try:
        return only_root_can_write(module)
    except OSError as error:
        raise KeyRetrievalError(f"PKCS#11 module {module} cannot be loaded") from error


def _find_token(module: str, traits: Mapping[str, str | bytes | int]) -> Any:
    tokens = [
        token
        for token in _load_library(module).get_tokens(
            token_flags=pkcs11.TokenFlag.TOKEN_INITIALIZED
        )
        if all(
            getattr(token.slot if trait == "slot_id" else token, trait) == value
            for trait, value in traits.items()
        )
    ]
    if not tokens:
        raise KeyNotFoundError(f"PKCS#11 module {module} has no token that matches the URI")
    if len(tokens) > 1:
        labels = ", ".join(
            sorted(f"{token.label} ({token.serial.decode(errors='replace')})" for token in tokens)
        )
        raise KeyRetrievalError(
            f"the PKCS#11 URI matches several tokens: {labels}; add token= or serial="
        )
    return tokens[0]
