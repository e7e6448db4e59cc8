#!/bin/sh
# moto's AWS KMS encrypts under RSA keys with AES: it cannot decrypt what their public key encrypted.
#
# Versions: moto 5.2.5 with boto3 1.43.127 and cryptography 50.0.2.
# Behaviour: AWS publishes the public half of an RSA key, so that anyone can wrap a data key offline, and
# decrypts it with the private half. moto publishes one as well, but its Encrypt, Decrypt and
# GenerateDataKey use a symmetric key that every key has, whatever its kind. GenerateDataKey is for
# symmetric keys alone, and Encrypt of RSA-2048 takes 190 bytes and answers with 256.
# Seen: InvalidCiphertextException for the data key; 80 bytes from Encrypt for 16, and 4064 for 4000.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    "moto[kms]==5.2.5" boto3==1.43.127 botocore==1.43.127 cryptography==50.0.2

cd "$folder"
new/bin/python - <<'PYTHON'
import boto3
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key
from moto import mock_aws

ACCOUNT = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
HOW = {"EncryptionAlgorithm": "RSAES_OAEP_SHA_256"}

with mock_aws():
    kms = boto3.client("kms", "eu-central-1", **ACCOUNT)
    created = kms.create_key(KeySpec="RSA_2048", KeyUsage="ENCRYPT_DECRYPT")["KeyMetadata"]
    key = {"KeyId": created["KeyId"]}
    public = load_der_public_key(kms.get_public_key(**key)["PublicKey"])
    wrapped = public.encrypt(bytes(16), OAEP(MGF1(SHA256()), SHA256(), None))
    try:
        kms.decrypt(CiphertextBlob=wrapped, **key, **HOW)
        outcome = "decrypted"
    except ClientError as error:
        outcome = error.response["Error"]["Code"]
    sizes = [
        len(kms.encrypt(Plaintext=bytes(size), **key, **HOW)["CiphertextBlob"]) for size in (16, 4000)
    ]
    data_key = kms.generate_data_key(KeySpec="AES_128", **key)["Plaintext"]
print("wrapped under the public key:", len(wrapped), "bytes,", outcome)
print("from Encrypt:", sizes, "bytes; a data key of", len(data_key), "bytes")
assert (len(wrapped), outcome) == (256, "InvalidCiphertextException"), "the behaviour has changed"
assert (sizes, len(data_key)) == ([80, 4064], 16), "the behaviour has changed"
PYTHON
