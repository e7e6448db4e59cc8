"""Clients of key services in Java, driven from Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.java.jvm import plain_py4j

KEYS = (b"sixteen bytes ok", b"twenty-four bytes are ok", b"and thirty-two bytes are as well")


class JavaError(Exception):
    """An exception of a client in Java: its class and message."""


class JavaClient:
    """The client in Java, initialised as parquet-java does it."""

    def __init__(self, jvm: Any, uri: str | None, aad: str = "", instance: str = "DEFAULT") -> None:
        configuration = jvm.org.apache.hadoop.conf.Configuration(False)
        if uri is not None:
            configuration.set("modcrypt.kms.uri", uri)
        configuration.set("modcrypt.kms.aad", aad)
        self._client = jvm.modcrypt.ModcryptKmsClient()
        call_java(self._client.initialize, configuration, instance, instance, "DEFAULT")

    def wrap(self, key: bytes, master: str) -> str:
        return str(call_java(self._client.wrapKey, key, master))

    def unwrap(self, wrapped: str, master: str) -> bytes:
        return bytes(call_java(self._client.unwrapKey, wrapped, master))


class JavaService:
    """One attempt at a key service in Java, with an environment of its own.

    `name` is the class; `more` are addresses that stand in for those of a cloud.
    """

    def __init__(
        self, jvm: Any, name: str, uri: str, aad: bytes = b"",
        environment: Mapping[str, str] | None = None, *more: str,
    ) -> None:  # fmt: skip
        variables = jvm.java.util.HashMap()
        for variable, value in (environment or {}).items():
            variables.put(variable, value)
        self._service = call_java(getattr(jvm.modcrypt, name), uri, aad, variables, *more)

    def wrap(self, key: bytes, master: str) -> str:
        return str(call_java(self._service.wrap, key, master))

    def unwrap(self, wrapped: str, master: str) -> bytes:
        return bytes(call_java(self._service.unwrap, wrapped, master))


def call_java(method: Any, *arguments: Any) -> Any:
    """Call a method; raise what it throws as a JavaError."""
    from py4j.protocol import Py4JJavaError

    try:
        with plain_py4j():
            return method(*arguments)
    except Py4JJavaError as error:
        thrown = error.java_exception
        assert thrown.getCause() is None  # which might show what we do not
        name = thrown.getClass().getSimpleName()
        raise JavaError(f"{name}: {thrown.getMessage()}") from None
