"""Public keys as lines of text, and files of them, hostile ones too."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from modcrypt import Identity, Key, Recipient, Settings, SigningKey
from modcrypt.errors import KeyMaterialError, KeyRetrievalError
from modcrypt.kms import VerifyingKey, read_recipients
from modcrypt.kms.recipients.public_lines import MAX_LINE, MAX_PUBLIC_FILE, parse_lines
from modcrypt.kms.recipients.recipient import check_recipients, parse_ids
from modcrypt.kms.signing.signing_keys import read_verifying_keys
from modcrypt.pkmt1.recipient_metadata import MAX_RECIPIENTS
from tests.support.cases import each_case
from tests.support.frame_watch import find_secrets
from tests.support.recipients import KINDS, identity

ME = identity().recipient
OTHER = identity("other", "mlkem768-x25519").recipient


@each_case("kind", KINDS)
def test_a_line_is_read_as_it_was_written(kind: str) -> None:
    recipient = Identity.generate(kind).recipient
    line = str(recipient)
    assert line.startswith(f"modcrypt-recipient:{kind}:")
    assert line.endswith(f":{recipient.hex_id}")
    assert Recipient.parse(line) == recipient == pickle.loads(pickle.dumps(recipient))
    assert recipient.public_key.hex() not in repr(recipient)


def test_a_short_line_is_short() -> None:
    assert len(str(ME)) == 102
    assert len(str(OTHER)) < MAX_LINE


def test_every_changed_character_of_a_line_is_noticed() -> None:
    line = str(ME)
    for at, letter in enumerate(line):
        for other in {"A" if letter != "A" else "B", "é", ":", ""} - {letter}:
            with pytest.raises(KeyMaterialError) as caught:
                Recipient.parse(line[:at] + other + line[at + 1 :])
            assert line[30:50] not in str(caught.value)


def line_of(key: bytes, kind: str = "x25519") -> str:
    text = base64.urlsafe_b64encode(key).rstrip(b"=").decode()
    return f"modcrypt-recipient:{kind}:{text}:{'0' * 32}"


@each_case("line", [
    "", "age1qqqq", line_of(bytes(31)), line_of(bytes(33)), line_of(bytes(32)),
    line_of(bytes(32), "p256"), line_of(b"\xff" * 1216, "mlkem768-x25519"),
    f"{ME} comment", f"{ME}\n", str(ME).upper(), str(ME).replace(":", "="),
])  # fmt: skip
def test_what_is_no_recipient_is_refused(line: str) -> None:
    with pytest.raises(KeyMaterialError):
        Recipient.parse(line)


def test_keys_that_agree_on_a_constant_are_refused() -> None:
    with pytest.raises(ValueError, match="invalid"):
        Recipient("x25519", bytes(32))
    with pytest.raises(ValueError, match="bytes"):
        Recipient("x25519", bytes(31))
    with pytest.raises(ValueError, match="unknown kind"):
        Recipient("rsa", bytes(32))


def test_a_file_of_recipients_may_have_comments_and_repeats(tmp_path: Path) -> None:
    path = tmp_path / "partners.txt"
    path.write_text(f"# partners\n\n{ME} me\r\n\t{OTHER}\t# other\n{ME}\n")
    assert read_recipients(path) == (ME, OTHER)
    with pytest.raises(KeyMaterialError, match="2 recipients, not one"):
        Recipient.load(path)
    path.write_text(f"{ME}\n")
    assert Recipient.load(path) == ME


@each_case("content", [
    b"", b"\n# nothing\n", b"\xff\xfe", b"\x00" * 1000, str(ME).encode() + b"\nnonsense\n",
    b"x" * (MAX_LINE + 1), b"#" * (MAX_LINE + 1), b"\n" * (MAX_PUBLIC_FILE + 1),
    str(ME).encode()[:-1],
], ids=[
    "empty", "comments alone", "another encoding", "zeros", "a line too much", "a long line",
    "a long comment", "a long file", "cut",
])  # fmt: skip
def test_hostile_files_of_recipients_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "partners.txt"
    path.write_bytes(content)
    with pytest.raises(KeyMaterialError, match=r"partners.txt"):
        read_recipients(path)


def test_an_identity_in_place_of_a_recipient_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "me.key"
    identity().save(path)
    with pytest.raises(KeyMaterialError) as caught:
        read_recipients(path)
    assert "not a recipient" in str(caught.value)
    assert 'key":' not in str(caught.value)


def test_the_number_of_recipients_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("recipient", "public_lines"):
        monkeypatch.setattr(f"modcrypt.kms.recipients.{module}.MAX_RECIPIENTS", 2)
    third = identity("third").recipient
    lines = [str(ME), str(OTHER), str(third)]
    with pytest.raises(KeyMaterialError, match="more than 2"):
        parse_lines("\n".join(lines).encode(), Recipient.parse, "recipients")
    with pytest.raises(ValueError, match="1 to 2"):
        check_recipients([ME, OTHER, third])
    with pytest.raises(ValueError, match="not 0"):
        check_recipients([])
    assert check_recipients([ME, ME]) == (ME,)
    with pytest.raises(TypeError, match="Recipient objects"):
        check_recipients([str(ME)])  # type: ignore[list-item]
    assert MAX_RECIPIENTS == 4096


def test_ids_are_hex_digits() -> None:
    assert parse_ids([ME.hex_id]) == (ME.id,)
    for text in ("", ME.hex_id[:-1], ME.hex_id.upper(), str(ME)):
        with pytest.raises(ValueError, match="not the id"):
            parse_ids([text])


PASTED: dict[str, Callable[[str], object]] = {
    "recipient": Recipient.parse,
    "recipient's file": Recipient.load,
    "file in a folder": lambda key: Recipient.load(f"/home/someone/{key}"),
    "recipients": read_recipients,
    "lines": lambda key: parse_lines(key.encode(), Recipient.parse, "recipients"),
    "line after a name": lambda key: Recipient.parse(f"modcrypt-recipient:x25519:{key}:"),
    "verifier": VerifyingKey.parse,
    "verifier's file": VerifyingKey.load,
    "verifiers": lambda key: read_verifying_keys([f"/lake/{key}"]),
    "identity": Identity.load,
    "signing key": SigningKey.load,
    "key": Key.from_file,
    "variable": Key.from_env,
    "identities": lambda key: Settings(identities=("file:", key)),
    "signing key of settings": lambda key: Settings(footer_key="env:X", signing_key=key),
    "footer key": lambda key: Settings(footer_key=key),
    "passphrase": lambda key: Settings(kms="file:x", passphrase=key),
}


@each_case("place", list(PASTED))
@each_case("kind", KINDS)
def test_no_error_carries_a_private_key_that_was_pasted(place: str, kind: str) -> None:
    raw = identity("pasted", kind)._secret()
    key = base64.b64encode(raw).decode()
    with pytest.raises((OSError, ValueError, KeyRetrievalError)) as caught:
        PASTED[place](key)
    assert not find_secrets(caught.value, raw, key.encode())


def test_a_file_with_a_private_key_is_no_file_of_recipients(tmp_path: Path) -> None:
    identity().save(tmp_path / "me.key")
    for load in (read_recipients, VerifyingKey.load):
        with pytest.raises(KeyMaterialError, match="line 1: not a") as caught:
            load(tmp_path / "me.key")
        assert not find_secrets(caught.value, identity()._secret())
