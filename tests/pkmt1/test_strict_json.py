"""JSON that two readers could interpret differently, or nobody can write again, is refused."""

from __future__ import annotations

import pytest

from modcrypt import Recipient
from modcrypt.errors import KeyMaterialError
from modcrypt.kms import VerifyingKey
from modcrypt.pkmt1.recipient_metadata import replace_recipients
from modcrypt.pkmt1.strict_json import strict_json
from tests.support.cases import each_case

HALF = r"\ud800"


@each_case(
    "text",
    [
        f'"{HALF}"', f'["a", "{HALF}"]', f'{{"{HALF}": 1}}', f'{{"a": {{"b": ["{HALF}x"]}}}}',
        r'"\udc00\ud800"', r'"\uD83D"', '"\ud800"', '{"a": "\udcff"}',
        '{"a": 1, "a": 1}', "NaN", "[1", "[" * 100_000,
    ],
)  # fmt: skip
def test_bad_text_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(KeyMaterialError, match="not valid JSON") as caught:
        strict_json(text)
    assert caught.value.__context__ is None


@each_case("text", [r'"\ud83d\ude00"', '"😀"', r'"\\ud800"', r'{"\u00e9": "é"}'])
def test_whole_characters_are_read(text: str) -> None:
    assert strict_json(text) == strict_json(text.encode())


def test_half_a_character_is_an_error_of_the_file_wherever_it_is_parsed() -> None:
    with pytest.raises(KeyMaterialError):
        replace_recipients(f'{{"keyMaterialType":"PKMT1","x":"{HALF}"}}'.encode(), None)
    for parse, name in ((VerifyingKey.parse, "verifier"), (Recipient.parse, "recipient")):
        with pytest.raises(KeyMaterialError, match="not a"):
            parse(f"modcrypt-{name}:\ud800:AAAA:{'0' * 32}")
