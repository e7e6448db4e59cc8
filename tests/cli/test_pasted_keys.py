"""A private key that is pasted where its file belongs is never repeated."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import modcrypt as mc
from modcrypt.cli.app import program
from modcrypt.cli.shared_options import parameters_of
from modcrypt.keys.lookalikes import HIDDEN, show_name
from tests.support.cases import each_case, one_in
from tests.support.cli.program import run

PART = 16
"""Characters of a key whose repetition counts as a leak."""


def list_commands(
    group: click.Group, *names: str
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from list_commands(command, *names, name)
        elif names != ("spark",):  # whose only paths are those of new files
            yield (*names, name), command


def list_places() -> Iterator[tuple[str, ...]]:
    """Yield command lines with KEY where a user may paste a key: each argument, each option."""
    for names, command in list_commands(program):
        arguments = [p for p in parameters_of(command) if isinstance(p, click.Argument)]
        blanks = ["missing"] * len(arguments)
        for n in range(len(arguments)):
            yield (*names, *blanks[:n], "KEY", *blanks[n + 1 :])
        for option in parameters_of(command):
            takes_text = isinstance(option, click.Option) and not option.is_flag
            if takes_text and "--spark" not in option.opts:  # which starts Java
                long = option.opts[-1]
                given = [f"{long}=KEY"] if len(long) % 2 else [long, "KEY"]
                yield (*names, *blanks, *given)


@pytest.fixture(scope="module")
def private_keys(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Private keys as the files have them, and a whole file."""
    folder = tmp_path_factory.mktemp("keys")
    mc.Identity.generate().save(folder / "hybrid")
    mc.Identity.generate("x25519").save(folder / "short")
    mc.SigningKey.generate().save(folder / "signing")
    texts = [(folder / name).read_text() for name in ("hybrid", "short", "signing")]
    return [json.loads(text)["key"] for text in texts] + [texts[1]]


def repeats(output: str, secret: str) -> bool:
    key = json.loads(secret)["key"] if secret.startswith("{") else secret
    return any(key[n : n + PART] in output for n in range(len(key) - PART + 1))


@each_case("place", list_places(), quick=one_in(5))
def test_no_place_repeats_a_private_key(
    place: tuple[str, ...], private_keys: list[str], tmp_path: Path
) -> None:
    secret = private_keys[len("".join(place)) % len(private_keys)]  # each sees a part of the places
    answer = run(tmp_path, *(word.replace("KEY", secret) for word in place))
    assert answer.returncode != 70, answer
    assert not repeats(answer.stdout + answer.stderr, secret)


def test_a_key_that_is_no_normal_path_is_not_repeated(tmp_path: Path) -> None:
    key = "Kq3//Zr8TbVx2Lm9WcNs4Pd7Hf1Gj6Yu0Ra5Te3Oi8Qw+"  # two slashes become one in paths
    for place in (("verify", "missing", "--config", key), ("inspect", key), ("verify", key)):
        answer = run(tmp_path, *place)
        assert not repeats(answer.stdout + answer.stderr, key.replace("//", "/"))


@each_case(
    "name",
    [
        "orders.key",
        "/home/someone/Documents/keys/Production-2024/footer_key_of_the_orders",
        "/tmp/pytest-of-root/pytest-130/test_no_place_repeats_a_private0/lake/Keys",
        "data/day=2026-11-28/part-00000-8c7d3e9b-51f2-4f0c-9a4e-2d1c7b6a5f40",
    ],
)
def test_paths_are_repeated(name: str) -> None:
    assert show_name(name) == name


def test_private_keys_are_recognised_in_paths_and_options() -> None:
    for n in range(300):
        key = base64.b64encode(hashlib.sha256(b"%d" % n).digest()).decode()
        for shown in (key, f"file:{key}", f"--to={key}", f"/home/someone/{key}"):
            assert show_name(shown) == HIDDEN, n
