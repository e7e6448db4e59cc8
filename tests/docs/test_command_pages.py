"""The pages of the website about commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from modcrypt.cli.app import program
from modcrypt.cli.shared_options import parameters_of
from tests.support.cli.tree import commands_of
from tools.docs.command_page import INDEX, make_command_navigation, make_command_pages


def pages_in(navigation: Any) -> Iterator[str]:
    if isinstance(navigation, str):
        yield navigation
    else:
        for part in navigation:
            for below in part.values():
                yield from pages_in(below)


def test_each_command_has_one_page_and_the_navigation_leads_to_it() -> None:
    pages = make_command_pages()
    assert sorted(pages_in(make_command_navigation())) == sorted(pages)
    names = {name for name, _ in commands_of(program)} - {"modcrypt"}
    assert {text.splitlines()[0] for uri, text in pages.items() if uri != INDEX} == {
        f"# {name}" for name in names
    }


def test_a_page_has_all_options_of_its_command() -> None:
    pages = {text.splitlines()[0][2:]: text for text in make_command_pages().values()}
    for name, command in commands_of(program):
        if isinstance(command, click.Group):
            continue
        for option in parameters_of(command):
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0] in pages[name], (name, option.opts)
