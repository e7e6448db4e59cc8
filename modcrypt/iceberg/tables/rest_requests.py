"""Requests to a REST catalog about one table, through the authenticated session of pyiceberg.

pyiceberg's own requests drop the `key-id` of snapshots and know no updates of keys, so the bodies
are those of the REST catalog's specification.

pyiceberg limits neither size nor duration of answers, unpacks compressed ones, and follows
redirects with the user's headers. So `LimitedRestCatalog` limits its session from the first request
on, and `bound_requests` that of a catalog which its caller has opened.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote
from weakref import WeakKeyDictionary, WeakSet

from pyiceberg.catalog.rest import PAGE_SIZE, Capability, Endpoints, RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    ForbiddenError,
    NoSuchNamespaceError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from requests import RequestException, Response, Session, TooManyRedirects

from modcrypt.errors import (
    CommitConflictError,
    FormatError,
    LimitError,
    ModcryptError,
    UnsupportedFormatError,
    printable,
)
from modcrypt.iceberg.format.table_metadata import MAX_METADATA, TableMetadata
from modcrypt.kms.services.bounded_http import AnswerLimits, UnacceptableAnswerError, bound_session
from modcrypt.pkmt1.strict_json import load_json

if TYPE_CHECKING:
    from modcrypt.iceberg.tables.pointers import Identifier

TIMEOUT = (30, 300)  # seconds to wait for a connection, and for an answer

LIMITS = AnswerLimits(size=MAX_METADATA, seconds=TIMEOUT[1], transfer=20.0)
"""Limits of an answer. Servers may think long about a commit; then the answer comes in one go."""

MAX_PAGES = 10_000
"""Maximum number of pages of one list; servers put a hundred names or more on each."""

MAX_REASON = 300
"""Maximum length of the server's words in an error."""

_EXPIRED = {HTTPStatus.UNAUTHORIZED, 419}  # 419: the REST catalog's code for an expired token


_BOUNDED: WeakSet[Session] = WeakSet()
_SETTINGS: WeakKeyDictionary[RestCatalog, Mapping[str, str]] = WeakKeyDictionary()


class LimitedRestCatalog(RestCatalog):
    """A REST catalog whose answers are limited, and that keeps its user's settings apart.

    pyiceberg asks for a token and the server's settings when it creates the catalog, and adds the
    latter to the user's.
    """

    def __init__(self, name: str, **properties: Any) -> None:
        self.own_settings = dict(properties)
        super().__init__(name, **properties)

    def _create_session(self) -> Session:
        session = super()._create_session()
        limit_session(session)  # again: signing adds an adapter
        return session

    def _create_legacy_oauth2_auth_manager(self, session: Session) -> Any:
        limit_session(session)  # it asks for a token at once
        return super()._create_legacy_oauth2_auth_manager(session)


def bound_requests(catalog: RestCatalog) -> None:
    """Limit the session of a catalog, if it is not yet."""
    if catalog._session not in _BOUNDED:
        limit_session(catalog._session)


def limit_session(session: Session) -> None:
    """Limit the answers that a session gets from now on, and follow no redirects."""
    bound_session(session, lambda: LIMITS)
    session.max_redirects = 0
    _BOUNDED.add(session)


class TableAnswer(NamedTuple):
    """The answer of a server about a table."""

    location: str  # of the metadata.json
    metadata: TableMetadata
    config: Mapping[str, str]  # how to open the table's files, with vended credentials
    restrictions: Any = None  # read restrictions, as JSON; checked when rows are read


def list_tables(catalog: RestCatalog, namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the identifiers of the tables in a namespace. Raises as `list_namespaces`."""
    catalog._check_endpoint(Capability.V1_LIST_TABLES)
    url = _url(catalog, Endpoints.list_tables, namespace)

    def read(table: Mapping[str, Any]) -> tuple[str, ...]:
        return (*map(str, table["namespace"]), str(table["name"]))

    return list(_pages(catalog, url, {}, "identifiers", read))


def list_namespaces(catalog: RestCatalog, parent: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the namespaces in a namespace, or at the top.

    pyiceberg 0.12 encodes the parent twice, so servers do not find a name with a space in it.

    Raises:
        NoSuchNamespaceError: The server has no such namespace.
        LimitError: There are more than `MAX_PAGES` pages, or an answer exceeds `LIMITS`.
        UnsupportedFormatError: A URL cannot have the name; see `check_names`.
        ModcryptError, OSError: As `load`.
    """
    catalog._check_endpoint(Capability.V1_LIST_NAMESPACES)
    check_names(catalog, parent)
    params = {"parent": catalog._namespace_separator.join(parent)} if parent else {}
    url = catalog.url(Endpoints.list_namespaces)
    return list(_pages(catalog, url, params, "namespaces", lambda names: tuple(map(str, names))))


def _pages(
    catalog: RestCatalog, url: str, params: Mapping[str, str], member: str,
    read: Callable[[Any], tuple[str, ...]],
) -> Iterator[tuple[str, ...]]:  # fmt: skip
    if size := catalog.properties.get(PAGE_SIZE):
        params = {**params, "pageSize": size}
    for _ in range(MAX_PAGES):
        response = _request(catalog, "GET", url, None, params=params)
        if response.status_code == HTTPStatus.NOT_FOUND:
            raise NoSuchNamespaceError("the catalog has no such namespace")
        if response.status_code != HTTPStatus.OK:
            raise _failure(response)
        try:
            answer = load_json(response.content)
            items, token = list(map(read, answer[member])), answer.get("next-page-token")
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            raise FormatError("the REST catalog's answer is not a list of names") from None
        yield from items
        if not token:
            return
        params = {**params, "pageToken": token}
    raise LimitError(f"the REST catalog's list has more than {MAX_PAGES} pages")


def load_settings(catalog: RestCatalog) -> Mapping[str, str]:
    """Return the settings that a server makes for its clients; ask it once for each catalog.

    Raise ModcryptError or OSError as `load`.
    """
    if catalog not in _SETTINGS:
        url = catalog.url(Endpoints.get_config, prefixed=False)
        warehouse = {
            key: catalog.properties[key] for key in ["warehouse"] if key in catalog.properties
        }
        response = _request(catalog, "GET", url, None, params=warehouse)
        if response.status_code != HTTPStatus.OK:
            raise _failure(response)
        _SETTINGS[catalog] = _read_settings(response)
    return _SETTINGS[catalog]


def _read_settings(response: Response) -> Mapping[str, str]:
    try:
        answer = load_json(response.content)
        return {**(answer.get("defaults") or {}), **(answer.get("overrides") or {})}
    except (ValueError, RecursionError, TypeError, AttributeError):
        raise FormatError("the REST catalog's configuration is malformed") from None


def load(catalog: RestCatalog, identifier: Identifier) -> TableAnswer | None:
    """Load a table; return None if it does not exist.

    Raises:
        LimitError: The answer is longer than `LIMITS`, or compressed.
        ModcryptError: The answer is not that of a table.
        OSError: The server failed, refused or redirected the request, or was slower than `LIMITS`.
    """
    response = _send(catalog, "GET", identifier, None)
    if response.status_code == HTTPStatus.NOT_FOUND:
        return None
    if response.status_code != HTTPStatus.OK:
        raise _failure(response)
    return _read_answer(response, catalog.table_name_from(identifier))


def commit(
    catalog: RestCatalog,
    identifier: Identifier,
    requirements: Sequence[Mapping[str, Any]],
    updates: Sequence[Mapping[str, Any]],
) -> TableAnswer:
    """Commit updates to a table; return its new version.

    Raises:
        CommitConflictError: The table does not meet a requirement, or has been dropped.
        UnsupportedFormatError: The server refuses an update.
        OSError: The outcome is unknown.
    """
    *namespace, name = catalog.identifier_to_tuple(identifier)
    body = {
        "identifier": {"namespace": namespace, "name": name},
        "requirements": list(requirements), "updates": list(updates),
    }  # fmt: skip
    data = json.dumps(body, ensure_ascii=False).encode()
    with _unknown_outcome():
        response = _send(catalog, "POST", identifier, data)
        if response.status_code == HTTPStatus.OK:
            return _read_answer(response, name)
    if response.status_code in {HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND}:
        raise CommitConflictError(f"{name}: another writer was faster: {_reason(response)}")
    if response.status_code in _REFUSED - _PASSING:
        raise UnsupportedFormatError(f"{name}: the REST catalog refuses this: {_reason(response)}")
    raise _failure(response)


def look_up(catalog: RestCatalog, identifier: Identifier) -> TableAnswer | None:
    """Load a table after a commit; raise OSError if it remains unknown whether that took effect."""
    with _unknown_outcome():
        return load(catalog, identifier)


@contextlib.contextmanager
def _unknown_outcome() -> Iterator[None]:
    """Convert errors of an answer to OSError: the server has carried out the commit, or not."""
    try:
        yield
    except ModcryptError as error:
        raise OSError(str(error)) from None


def drop(catalog: RestCatalog, identifier: Identifier) -> bool:
    """Drop a table and keep its files; return False if it does not exist.

    Raise ModcryptError or OSError as `load`; the outcome is unknown.
    """
    response = _send(catalog, "DELETE", identifier, None, {"purgeRequested": "false"})
    if response.status_code == HTTPStatus.NOT_FOUND:
        return False
    if response.status_code not in {HTTPStatus.OK, HTTPStatus.NO_CONTENT}:
        raise _failure(response)
    return True


_REFUSED = frozenset(range(400, 500))
_PASSING = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
"""Statuses of refusals, and those among them that a gateway may give to a request under way."""


def check_writable(catalog: RestCatalog) -> None:
    """Raise UnsupportedFormatError if the server offers no commits."""
    if Capability.V1_UPDATE_TABLE not in catalog._supported_endpoints:
        raise UnsupportedFormatError(
            f"{printable(catalog.uri)}: this REST catalog offers no commits, so tables cannot be "
            "changed"
        )


def _send(
    catalog: RestCatalog, method: str, identifier: Identifier, body: bytes | None,
    params: Mapping[str, str | None] | None = None,
) -> Response:  # fmt: skip
    *namespace, name = catalog.identifier_to_tuple(identifier)
    url = _url(catalog, Endpoints.load_table, namespace, table=name)
    return _request(catalog, method, url, body, params)


def _url(catalog: RestCatalog, endpoint: str, namespace: Sequence[str], **names: str) -> str:
    """Return the URL of a namespace or of something in it."""
    # The specification encodes each part of a namespace once, and the separator between them.
    check_names(catalog, (*namespace, *names.values()))
    path = quote(catalog._namespace_separator, safe="").join(quote(n, safe="") for n in namespace)
    encoded = {what: quote(name, safe="") for what, name in names.items()}
    return catalog.url(endpoint, True, namespace=path, **encoded)


def check_names(catalog: RestCatalog, names: Sequence[str]) -> None:
    """Raise UnsupportedFormatError if the path of a URL cannot have one of these names."""
    # Clients resolve `.` and `..` in paths, even encoded, so the request would be about another
    # table. Servers split namespaces at the unit separator, and at the one that they announce.
    separators = "\x1f", catalog._namespace_separator
    for name in names:
        if name in ("", ".", "..") or any(each in name for each in separators):
            raise UnsupportedFormatError(
                f"{printable(name, MAX_REASON)!r}: requests to a REST catalog cannot have this "
                "name: it is empty, only dots, or has the separator of namespaces; rename it"
            )


def _request(
    catalog: RestCatalog, method: str, url: str, body: bytes | None,
    params: Mapping[str, str | None] | None = None,
) -> Response:  # fmt: skip
    bound_requests(catalog)  # again: a copy in another process has lost its limits

    def send() -> Response:
        return catalog._session.request(method, url, params=params, data=body, timeout=TIMEOUT)

    try:
        response = send()
        if response.status_code in _EXPIRED:
            catalog._refresh_token()
            response = send()
    except UnacceptableAnswerError as error:
        raise LimitError(f"the REST catalog's answer is refused: {error}") from None
    except RequestException as error:
        raise _connection_error(error) from None
    except (RESTError, ValueError, KeyError) as error:  # pyiceberg's texts may have the token
        why = f"the REST catalog failed: it gave no valid token: {type(error).__name__}"
        raise PermissionError(why) from None
    return response


def _connection_error(error: Exception) -> OSError:
    if isinstance(error, TooManyRedirects):
        return OSError(
            "the REST catalog redirects requests, and modcrypt sends credentials only to the "
            "address that you name: set uri to the address that it redirects to"
        )
    return OSError(f"the REST catalog failed: {type(error).__name__}")


def _read_answer(response: Response, name: str) -> TableAnswer:
    try:
        answer = load_json(response.content, surrogates=True)
        location, document = answer["metadata-location"], answer["metadata"]
        config = {**(answer.get("config") or {}), **_credentials(answer, location)}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise FormatError(f"{name}: the REST catalog's answer is not that of a table") from None
    if not isinstance(location, str) or not all(isinstance(v, str) for v in config.values()):
        raise FormatError(f"{name}: the REST catalog names no metadata.json of the table")
    data = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    restrictions = answer.get("read-restrictions")
    return TableAnswer(location, TableMetadata(data, location), config, restrictions)


def _credentials(answer: Mapping[str, Any], location: str) -> Mapping[str, str]:
    """Return the vended credentials with the longest prefix of a location."""
    fitting = [
        credential
        for credential in answer.get("storage-credentials") or ()
        if location.startswith(credential["prefix"])
    ]
    longest = max(fitting, key=lambda credential: len(credential["prefix"]), default=None)
    return {} if longest is None else longest["config"]


@contextlib.contextmanager
def pyiceberg_errors() -> Iterator[None]:
    """Convert errors of pyiceberg's requests to those of `Pointer`."""
    try:
        yield
    except TableAlreadyExistsError:
        raise FileExistsError("the catalog already has a table of this name") from None
    except NoSuchNamespaceError as error:
        raise ValueError(printable(str(error), MAX_REASON)) from None
    except NotImplementedError as error:
        raise UnsupportedFormatError(f"the catalog registers no tables: {error}") from None
    except BadRequestError as error:
        reason = printable(str(error), MAX_REASON)
        raise UnsupportedFormatError(f"the REST catalog refuses this: {reason}") from None
    except (ForbiddenError, UnauthorizedError) as error:
        raise PermissionError(f"the REST catalog failed: {type(error).__name__}") from None
    except (RESTError, RequestException, UnacceptableAnswerError) as error:
        raise _connection_error(error) from None


def _failure(response: Response) -> OSError:
    kind = PermissionError if response.status_code in {401, 403} else OSError
    return kind(f"the REST catalog failed: {_reason(response)}")


def _reason(response: Response) -> str:
    """Return the status of an answer, and the server's message."""
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = response.reason or ""
    return f"{response.status_code} {printable(message)[:MAX_REASON]}"
