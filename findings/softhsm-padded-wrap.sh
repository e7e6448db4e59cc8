#!/bin/sh
# SoftHSM 2.6.1 wraps a key with padding so that it comes back longer, with zeros at its end.
#
# Versions: softhsm2 2.6.1-2.1 of Debian 12, with python-pkcs11 0.10.1 and cryptography 50.0.2.
# Behaviour: RFC 5649 stores the length of the key, so that the padding can be removed. For
# CKM_AES_KEY_WRAP_PAD, SoftHSM pads the key itself to a multiple of 8 bytes and stores that length:
# neither its own C_UnwrapKey nor another program gets the key back. It unwraps what other programs
# wrapped. An AES key that C_UnwrapKey made works, but its CKA_VALUE_LEN is 0.
# Seen: 9 and 33 bytes come back as 16 and 40, in SoftHSM and in cryptography; 16 and 24 are right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    python-pkcs11==0.10.1 cryptography==50.0.2

cd "$folder"
version=2.6.1-2.1
apt-get download -q "softhsm2=$version" "softhsm2-common=$version" "libsofthsm2=$version" > apt.log 2>&1 ||
    { cat apt.log; exit 1; }
for package in *.deb; do dpkg-deb -x "$package" debian; done
mkdir tokens
echo "directories.tokendir = $folder/tokens" > softhsm2.conf
export SOFTHSM2_CONF="$folder/softhsm2.conf" MODULE="$folder/debian/usr/lib/softhsm/libsofthsm2.so"
debian/usr/bin/softhsm2-util --module "$MODULE" --init-token --free --label trial --pin 1234 --so-pin 5678

new/bin/python - <<'PYTHON'
import os

import pkcs11
from cryptography.hazmat.primitives.keywrap import (
    aes_key_unwrap_with_padding,
    aes_key_wrap,
    aes_key_wrap_with_padding,
)
from pkcs11 import Attribute, KeyType, Mechanism, ObjectClass

PAD, WRAPPING_KEY = Mechanism.AES_KEY_WRAP_PAD, bytes(range(32))
READABLE = {Attribute.EXTRACTABLE: True, Attribute.SENSITIVE: False, Attribute.TOKEN: False}
SECRET = ObjectClass.SECRET_KEY, KeyType.GENERIC_SECRET

token = pkcs11.lib(os.environ["MODULE"]).get_token(token_label="trial")
with token.open(rw=True, user_pin="1234") as session:

    def load(kind, value):
        template = {Attribute.CLASS: SECRET[0], Attribute.KEY_TYPE: kind, Attribute.VALUE: value}
        return session.create_object(READABLE | template | {Attribute.WRAP: True, Attribute.UNWRAP: True})

    def unwrap(wrapped):
        return wrapper.unwrap_key(*SECRET, wrapped, mechanism=PAD, template=READABLE)[Attribute.VALUE]

    wrapper = load(KeyType.AES, WRAPPING_KEY)
    found = {}
    for length in (9, 16, 24, 33):
        value = b"k" * length
        wrapped = wrapper.wrap_key(load(SECRET[1], value), mechanism=PAD)
        back = unwrap(wrapped)
        assert back == aes_key_unwrap_with_padding(WRAPPING_KEY, wrapped), "the behaviour has changed"
        assert back == value.ljust(len(back), b"\0"), "the behaviour has changed"
        assert unwrap(aes_key_wrap_with_padding(WRAPPING_KEY, value)) == value
        found[length] = len(back)
        print(length, "bytes come back as", len(back))
    aes = wrapper.unwrap_key(
        SECRET[0],
        KeyType.AES,
        aes_key_wrap(WRAPPING_KEY, b"k" * 16),
        mechanism=Mechanism.AES_KEY_WRAP,
        template=READABLE,
    )
    lengths = len(aes[Attribute.VALUE]), aes[Attribute.VALUE_LEN]
    print("an unwrapped AES key: bytes and CKA_VALUE_LEN", lengths)
assert found == {9: 16, 16: 16, 24: 24, 33: 40}, "the behaviour has changed"
assert lengths == (16, 0), "the behaviour has changed"
PYTHON
