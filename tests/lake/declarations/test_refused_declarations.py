"""A declaration that may not decide is refused alike by every verb, before it opens anything."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modcrypt.cli.app import program
from modcrypt.cli.shared_options import parameters_of
from tests.support.cases import each_case
from tests.support.cli.program import Answer, run
from tests.support.cli.tree import commands_of
from tests.support.folder_contents import bytes_of

DECLARATION = """\
kms = "hcvault://127.0.0.1:{port}/transit?tls=off"

[dataset.orders]
location = "files"
footer_key = "footer"

[dataset.sales]
kind = "iceberg"
location = "warehouse/sales"
master_key = "footer"
"""

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "apply": (), "keys impact": ("footer",), "keys list": (), "report": ("--json",), "status": (),
    "why": ("orders/a.parquet",),
    "decrypt": ("orders", "out"), "encrypt": ("x.parquet", "orders/new.parquet"),
    "mask": ("--drop", "x", "orders", "out"), "rekey": ("orders", "out"),
    "share": ("orders", "out"),
    "seals add": ("orders", "a"), "seals record": ("orders", "--", "true"),
    "seals remove": ("orders", "a"), "seals writers": ("orders", "w.pub"),
    "iceberg append": ("sales", "x.parquet"), "iceberg encrypt": ("x.parquet", "sales"),
    "iceberg rotate": ("mek", "sales"),
}  # fmt: skip
"""Arguments of commands that take others than the name of one dataset or table."""

DECLARES_NOTHING = {
    "ags1 cat", "ags1 decrypt", "ags1 encrypt", "ags1 inspect", "completion", "doctor",
    "keys create", "keys destroy", "keys disable", "keys enable", "keys generate", "man",
    "seals export", "spark jar", "spark package", "trust",
    "subjects create", "subjects erase", "subjects export", "subjects prove", "subjects rotate",
    "subjects status",
}  # fmt: skip
"""Commands that are about no dataset; `doctor` and `trust` show why a declaration is refused, and
`subjects` has a key service of its own."""


def list_verbs() -> dict[str, tuple[str, ...]]:
    """Return the arguments of each verb that a declaration could decide about."""
    verbs = {}
    for path, command in commands_of(program):
        name = path.partition(" ")[2]
        if isinstance(command, click.Group) or name in DECLARES_NOTHING:
            continue
        is_of_table = any("take_table" in str(each.callback) for each in parameters_of(command))
        verbs[name] = ARGUMENTS.get(name, ("sales" if is_of_table else "orders",))
    return verbs


@pytest.fixture
def service() -> Iterator[socket.socket]:
    """A server that the declaration names as its key service."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def not_trusted(config: Path) -> str:
    return "was not named, only found, so it may not command: kms = hcvault://127.0.0.1:"


def of_another_user(config: Path) -> str:
    os.chown(config, 4711, -1)
    return "belongs to another user (uid 4711)"


def writable_by_others(config: Path) -> str:
    config.chmod(0o666)
    return "is writable by others"


def in_a_folder_of_others(config: Path) -> str:
    config.parent.chmod(0o777)
    return "is writable by others, who can replace the file"


def is_refused(answer: Answer, config: Path, message: str) -> bool:
    """Return whether a verb failed because of the declaration.

    `encrypt` into a folder that does not exist need not be about a dataset: it warns.
    """
    is_said = message in answer.stderr or (
        answer.args[0] == "encrypt" and "is ignored, because" in answer.stderr
    )
    return answer.returncode == 2 and is_said and str(config) in answer.stderr


@each_case("refuse", (not_trusted, of_another_user, writable_by_others, in_a_folder_of_others))
def test_every_verb_refuses_it_before_it_opens_anything(
    refuse: object, tmp_path: Path, service: socket.socket
) -> None:
    if refuse is of_another_user and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    folder = tmp_path / "lake"
    (folder / "files").mkdir(parents=True)
    for path in ("x.parquet", "files/a.parquet"):
        pq.write_table(pa.table({"x": [1]}), folder / path)
    config = folder / "modcrypt.toml"
    config.write_text(DECLARATION.format(port=service.getsockname()[1]))
    assert callable(refuse)
    message, before = refuse(config), bytes_of(folder)
    for verb, arguments in list_verbs().items():
        answer = run(folder, *verb.split(), *arguments)
        assert is_refused(answer, config, message), (verb, answer.stdout, answer.stderr)
        assert bytes_of(folder) == before, verb
    with pytest.raises(BlockingIOError):
        service.accept()
