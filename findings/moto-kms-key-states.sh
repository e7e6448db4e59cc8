#!/bin/sh
# moto's AWS KMS uses keys that are disabled or about to be deleted, and never opens what a multi-Region key wrapped.
#
# Versions: moto 5.2.5 with boto3 1.43.127.
# Behaviour: AWS answers DisabledException or KMSInvalidStateException to all of these calls. moto reports
# the state in DescribeKey, and uses the key all the same, so a test that disabling a key makes data
# unreadable fails, and a test of the error that users would see never meets it. Another key than the
# wrapping one, which AWS answers with IncorrectKeyException, is AccessDeniedException, and so is any
# decryption with a multi-Region key, whose id is longer than those of other keys.
# Seen: states, and the outcome of Encrypt and Decrypt, below.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    "moto[kms]==5.2.5" boto3==1.43.127 botocore==1.43.127

cd "$folder"
new/bin/python - <<'PYTHON'
import boto3
from botocore.exceptions import ClientError
from moto import mock_aws

ACCOUNT = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}


def outcome(call, **arguments):
    try:
        call(**arguments)
        return "done"
    except ClientError as error:
        return error.response["Error"]["Code"]


def use(state):
    found = kms.describe_key(KeyId=key)["KeyMetadata"]["KeyState"]
    assert found == state, found
    encrypted = outcome(kms.encrypt, KeyId=key, Plaintext=b"key")
    return state, encrypted, outcome(kms.decrypt, CiphertextBlob=wrapped)


with mock_aws():
    kms = boto3.client("kms", "eu-central-1", **ACCOUNT)
    key, other = (kms.create_key()["KeyMetadata"]["KeyId"] for _ in range(2))
    wrapped = kms.encrypt(KeyId=key, Plaintext=b"key")["CiphertextBlob"]
    found = [("other key", outcome(kms.decrypt, CiphertextBlob=wrapped, KeyId=other))]
    regions = kms.create_key(MultiRegion=True)["KeyMetadata"]["KeyId"]
    by_regions = kms.encrypt(KeyId=regions, Plaintext=b"key")["CiphertextBlob"]
    found.append(("multi-Region key", outcome(kms.decrypt, CiphertextBlob=by_regions)))
    kms.disable_key(KeyId=key)
    found.append(use("Disabled"))
    kms.schedule_key_deletion(KeyId=key, PendingWindowInDays=7)
    found.append(use("PendingDeletion"))
print(*found, sep="\n")
assert found == [
    ("other key", "AccessDeniedException"),
    ("multi-Region key", "AccessDeniedException"),
    ("Disabled", "done", "done"),
    ("PendingDeletion", "done", "done"),
], "the behaviour has changed"
PYTHON
