"""Requests to a transit engine of Vault or OpenBao, and the errors that answers become."""

from __future__ import annotations

import base64
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms.pacing import is_cut_short, is_untrusted, parse_retry_after
from modcrypt.kms.services.vault_location import Engine
from modcrypt.pkmt1.material import MAX_WRAPPED
from modcrypt.runtime.extras import missing_extra
from modcrypt.runtime.tracebacks import hide_frames

try:
    import hvac
    import requests

    from modcrypt.kms.services.bounded_http import UnacceptableAnswerError, bounded_session
except ModuleNotFoundError as error:
    raise missing_extra("Vault", "vault") from error

TIMEOUT = 10  # time limit for a connection in seconds; `bounded_http` limits the answer
_WRAPPED = re.compile(r"vault:v([1-9][0-9]{0,8}):[A-Za-z0-9+/]+={0,2}", re.ASCII)
_ACTIONS = {"keys": "show or change keys"}
"""Purposes of requests, by the first part of their path, where it is not the verb."""


@dataclass(frozen=True)
class Answer:
    """An answer of Vault: its status, its JSON object, and the seconds it asks to wait."""

    status: int
    content: dict[str, Any] = field(repr=False)
    retry_after: float | None = None


class TransitRequests:
    """Requests to one transit engine, with a token or a client of hvac."""

    def __init__(
        self, engine: Engine, token: Callable[[], str] | None = None, client: Any = None
    ) -> None:
        self._engine, self._token, self._client = engine, token, client
        self._own = threading.local()

    def ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, key_id: str = "",
        missing_is_empty: bool = False, kind: str = "master key",
    ) -> dict[str, Any]:  # fmt: skip
        """Send one request, and return the answer's data; raise KeyRetrievalError.

        `method` is an HTTP method or "list", `path` the path below the engine's mount. With
        `missing_is_empty`, return no data if Vault reports that nothing exists; an answer of status
        200 must then contain data. Messages call the key `kind`.
        """
        answer = self._send(method, path, body)
        if answer.status == 204:
            return {}
        if answer.status == 200:
            data = answer.content.get("data", ...)  # an object or null in Vault
            if (data is None or isinstance(data, dict)) and (data or not missing_is_empty):
                return data or {}
            raise self.make_answer_error()
        if answer.status == 404 and missing_is_empty and answer.content.get("errors") == []:
            return {}  # the key does not exist; a missing engine would report errors
        verb = path.partition("/")[0]
        raise self._convert_error(answer, key_id, verb, kind)

    def ask_batch(
        self, path: str, items: list[dict[str, str]], key_id: str, **more: Any
    ) -> list[dict[str, Any] | KeyRetrievalError]:
        """Send one request for many keys; return the result or error of each. Raise as `ask`.

        Vault answers 200 or 400 if some keys fail (or another status that the caller configures).
        """
        verb = path.partition("/")[0]
        answer = self._send("post", path, {"batch_input": items, **more})
        data = answer.content.get("data")
        results = _as_list(data.get("batch_results")) if isinstance(data, dict) else []
        if answer.status not in (200, 207, 400) or (answer.status == 400 and not results):
            raise self._convert_error(answer, key_id, verb, "master key")
        if len(results) != len(items) or not all(isinstance(result, dict) for result in results):
            raise self.make_answer_error()
        return [
            self._convert_error(Answer(400, {"errors": [text]}), key_id, verb, "master key")
            if (text := result.get("error"))
            else result
            for result in results
        ]

    @hide_frames  # frames contain the token
    def _send(self, method: str, path: str, body: dict[str, Any] | None) -> Answer:
        adapter = self._get_adapter()
        url = f"/v1/{self._engine.mount}/{path}"
        failed: KeyRetrievalError
        try:
            return _split_answer(adapter.request(method, url, json=body, raise_exception=False))
        except UnacceptableAnswerError as error:
            failed = KeyRetrievalError(f"invalid answer from {self._engine}: {error}")
        except RecursionError:  # deeply nested JSON
            failed = self.make_answer_error()
        except requests.exceptions.SSLError as error:
            failed = self._convert_tls_error(error)
        except (requests.ConnectionError, requests.Timeout, _CutShort) as error:
            failed = KmsUnavailableError(
                f"Vault at {self._engine} is unavailable: {type(error).__name__}"
            )
        except requests.RequestException as error:
            failed = KeyRetrievalError(
                f"the request to {self._engine} failed with {type(error).__name__}"
            )
        except OSError:
            failed = KeyRetrievalError(
                f"the certificates to trust for {self._engine} cannot be read: check VAULT_CACERT, "
                "BAO_CACERT, VAULT_CAPATH and REQUESTS_CA_BUNDLE"
            )
        except ValueError:  # from `http.client`: a chunk of negative size
            failed = self.make_answer_error()
        finally:
            if self._token is not None:
                adapter.token = ""  # read again before each request
        raise failed  # outside the handler: the original error contains request, token and key

    def _convert_tls_error(self, error: Exception) -> KeyRetrievalError:
        """Return the error for a failed handshake; OpenSSL names its reason in upper case."""
        if is_cut_short(error):
            return KmsUnavailableError(f"Vault at {self._engine} ended the TLS handshake")
        if any(reason in str(error) for reason in _NO_TLS):
            return KeyRetrievalError(
                f"the server at {self._engine} does not speak TLS: check the port; for a Vault "
                "without TLS on the loopback interface, add ?tls=off to the URI"
            )
        if is_untrusted(error):
            return KeyRetrievalError(
                f"the TLS certificate of Vault at {self._engine} is not trusted here; set "
                "VAULT_CACERT to the file of its authority"
            )
        return KeyRetrievalError(f"the TLS handshake with Vault at {self._engine} failed")

    def _get_adapter(self) -> Any:
        """Return this thread's connection; a forked process does not share its parent's."""
        if self._token is None:
            return self._client.adapter
        if getattr(self._own, "pid", None) != os.getpid():
            self._own.client, self._own.pid = _connect(self._engine), os.getpid()
        self._own.client.token = self._token()
        return self._own.client.adapter

    def _convert_error(
        self, answer: Answer, key_id: str, verb: str, kind: str
    ) -> KeyRetrievalError:
        """Convert an answer to an error, which repeats none of Vault's text."""
        errors = _as_list(answer.content.get("errors"))
        status = answer.status
        text = " ".join(error for error in errors if isinstance(error, str)).strip()
        what = f"{kind} {key_id}: " if key_id else ""
        if status in (401, 403):
            return self._convert_denial(
                text, f"{what}Vault at {self._engine} refuses to {_ACTIONS.get(verb, verb)}"
            )
        if status == 404 and _NO_ENGINE in text:
            return self.make_missing_error("")
        if status == 404 or any(phrase in text for phrase in _NO_KEY):
            return self.make_missing_error(key_id, kind)
        if status in (412, 429, 472, 473) or status >= 500:
            # 429 is also that of a standby node, and then reaches `sys/health` only.
            throttled = status == 429
            reason = " (its rate limit is exceeded)" if throttled else ""
            return KmsUnavailableError(
                f"{what}Vault at {self._engine} answered {status}{reason}",
                throttled=throttled, retry_after=answer.retry_after,
            )  # fmt: skip
        if 300 <= status < 400:
            return KeyRetrievalError(
                f"Vault at {self._engine} redirects to another address, which modcrypt does not "
                "follow; use the address of the active node in the URI"
            )
        if status == 400 and text == _TLS_ONLY:
            return KeyRetrievalError(
                f"the server at {self._engine} speaks TLS: remove tls=off from the URI"
            )
        if status == 400:
            return self._convert_rejection(text, what, verb)
        return KeyRetrievalError(f"{what}Vault at {self._engine} answered {status}")

    def _convert_denial(self, text: str, what: str) -> KeyAccessDeniedError:
        """Convert a denial: only for a known token, the denials of its policies are listed."""
        if _POLICY_DENIAL.search(text) and not _UNKNOWN_TOKEN.search(text):
            return KeyAccessDeniedError(f"{what}: the policies of the token do not permit it")
        if _UNKNOWN_TOKEN.search(text) or text == "permission denied":
            return KeyAccessDeniedError(
                f"{what}: it does not know the token (any more): it has expired, was revoked, or "
                "its uses (num_uses) are spent; get a new token, for long jobs one without a limit "
                "of uses, and let an agent renew it"
            )
        return KeyAccessDeniedError(
            f"{what}: the token has expired, its uses (num_uses) are spent, or its policies do not "
            "permit it"
        )

    def _convert_rejection(self, text: str, what: str, verb: str) -> KeyRetrievalError:
        if "too old" in text:
            return KeyDisabledError(f"{what}the version that wrapped the key is disabled in Vault")
        if "soft-deleted" in text:
            return KeyDisabledError(f"{what}the key is disabled (soft-deleted) in Vault")
        if "missing 'context'" in text:
            return ContextMissingError(
                f"{what}the key is a derived key; add derived=true to the URI"
            )
        if verb in ("decrypt", "rewrap"):
            return KeyMaterialError(
                f"{what}the wrapped key does not unwrap: altered text, another master key or other "
                "AAD; Vault does not report which"
            )
        return KeyRetrievalError(f"{what}Vault at {self._engine} rejected the request to {verb}")

    def make_missing_error(self, key_id: str, kind: str = "master key") -> KeyNotFoundError:
        """Return the error for a key, or the engine, that does not exist."""
        what, advice = f"{kind} {key_id}", ""
        if not key_id:
            what = "transit engine"
            advice = "; enable it (vault secrets enable transit), or correct the path in the URI"
        return KeyNotFoundError(f"Vault has no {what} at {self._engine}{advice}")

    def require_member(self, data: Any, name: str) -> str:
        """Return a text of an answer; raise KeyRetrievalError if it is missing."""
        value = data.get(name) if isinstance(data, dict) else None
        if not isinstance(value, str):
            raise self.make_answer_error()
        return value

    @hide_frames
    def decode_base64(self, text: str) -> bytes:
        """Decode a text of an answer; raise KeyRetrievalError for other text."""
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            failed = self.make_answer_error()
        raise failed  # outside the handler, whose error contains the text

    @hide_frames
    def read_key(self, data: Any) -> bytes:
        """Return the unwrapped key in the data of an answer."""
        return self.decode_base64(self.require_member(data, "plaintext"))

    def read_wrapped(self, data: Any) -> str:
        """Return the wrapped key in the data of an answer, after the check of `unwrap`."""
        text = self.require_member(data, "ciphertext")
        try:
            parse_version(text)
        except KeyMaterialError:
            raise self.make_answer_error() from None
        return text

    def make_answer_error(self) -> KeyRetrievalError:
        """Return the error for an answer that is none of a transit engine."""
        return KeyRetrievalError(f"the server at {self._engine} is not a transit engine of Vault")


class ContextMissingError(KeyRetrievalError):
    """A request without a context for a derived key."""


_CutShort = requests.exceptions.ChunkedEncodingError
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_TLS_ONLY = "HTTP request to an HTTPS server"
_POLICY_DENIAL = re.compile(r"errors? occurred")  # Go's multierror
_UNKNOWN_TOKEN = re.compile(r"(?:bad|invalid) token")
_NO_ENGINE = "no handler for route"
_NO_KEY = ("key not found", "unknown key type", "no existing key")


def _connect(engine: Engine) -> Any:
    session = bounded_session()
    session.trust_env = not engine.loopback  # no proxy for loopback addresses
    authority = (os.environ.get(n) for n in ("VAULT_CACERT", "BAO_CACERT", "VAULT_CAPATH"))
    session.verify = next(filter(None, authority), True)
    return hvac.Client(
        engine.address,
        token="",  # set before each request
        timeout=TIMEOUT,
        session=session,
        namespace=engine.namespace,
        allow_redirects=False,
    )


def _split_answer(answer: Any) -> Answer:
    """Split hvac's result, which is the JSON value for status 200 and else the response."""
    if not hasattr(answer, "status_code"):
        return Answer(200, answer if isinstance(answer, dict) else {})
    try:
        content = answer.json()
    except ValueError:
        # A TLS server, Go's or nginx, may refuse a request without TLS in plain text.
        texts = _TLS_ONLY.encode(), b"sent to HTTPS port"
        refused = answer.status_code == 400 and any(text in answer.content for text in texts)
        content = {"errors": [_TLS_ONLY]} if refused else None
    wait = parse_retry_after(answer.headers)
    return Answer(answer.status_code, content if isinstance(content, dict) else {}, wait)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def parse_version(wrapped: str) -> int:
    """Return the version in a wrapped key; raise KeyMaterialError for other text."""
    found = _WRAPPED.fullmatch(wrapped) if len(wrapped) <= MAX_WRAPPED else None
    if found is None:
        raise KeyMaterialError("the wrapped key for Vault is not vault:v<version>:<base64>")
    return int(found[1])
