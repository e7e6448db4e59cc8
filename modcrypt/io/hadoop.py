"""The file systems of Hadoop that this machine is configured for."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

from modcrypt.io.store_errors import HADOOP

_FILES = "core-site.xml", "hdfs-site.xml"

_MOUNT_TABLE = re.compile(r"fs\.viewfs\.mounttable\.([^.]+)\.")
_ADDRESS = re.compile(r"dfs\.namenode\.(?:servicerpc|rpc)-address(?:\..+)?")


def is_configured(url: str) -> bool:
    """Return whether Hadoop's configuration names the cluster of an `hdfs` or `viewfs` URL.

    hdfs-native reads the same files, in `HADOOP_CONF_DIR` or in `etc/hadoop` below `HADOOP_HOME`.
    """
    parts = urlsplit(url)
    return parts.scheme.lower() in HADOOP and parts.netloc.lower() in set(_clusters())


def _clusters() -> Iterator[str]:
    """Yield the name services, mount tables, and hosts with ports; empty for the default one."""
    for name, value in _properties():
        if name == "fs.defaultFS":
            yield from ("", urlsplit(value).netloc.lower())
        elif name == "dfs.nameservices":
            yield from (part.strip().lower() for part in value.split(","))
        elif _ADDRESS.fullmatch(name):
            yield value.lower()
        elif match := _MOUNT_TABLE.match(name):
            yield match[1].lower()


def _properties() -> Iterator[tuple[str, str]]:
    home = os.environ.get("HADOOP_HOME")
    folder = os.environ.get("HADOOP_CONF_DIR") or (home and f"{home}/etc/hadoop")
    if not folder:
        return
    for file in _FILES:
        with contextlib.suppress(OSError, ElementTree.ParseError):
            for entry in ElementTree.parse(Path(folder, file)).iter("property"):  # noqa: S314  # the user's own file
                yield entry.findtext("name", "").strip(), entry.findtext("value", "").strip()
