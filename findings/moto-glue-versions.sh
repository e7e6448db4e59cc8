#!/bin/sh
# moto's AWS Glue accepts an update of a table for a version that is not current: a commit is lost unseen.
#
# Versions: moto 5.2.5, boto3 1.43.117.
# Behaviour: catalogs of Iceberg pass the `VersionId` that they read to UpdateTable, and AWS Glue refuses the
# second of two writers with ConcurrentModificationException. moto returns such versions from GetTable,
# and ignores them in UpdateTable. It also keeps tables `sales` and `Sales` apart, where AWS Glue
# has names in lower case. A test of concurrent commits on moto shows nothing about AWS.
# Seen: both of two writers that read version 1 succeed, and the table is that of the second.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check \
    "moto[glue]==5.2.5" boto3==1.43.117

cd "$folder"
export AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=y AWS_DEFAULT_REGION=us-east-1
new/bin/python - <<'PYTHON'
import boto3
from moto import mock_aws

with mock_aws():
    glue = boto3.client("glue")

    def change(call, name, location, **options):
        table = {"Name": name, "Parameters": {"metadata_location": location}}
        call(DatabaseName="shop", TableInput=table, **options)

    glue.create_database(DatabaseInput={"Name": "shop"})
    change(glue.create_table, "sales", "v0")
    version = glue.get_table(DatabaseName="shop", Name="sales")["Table"]["VersionId"]
    for writer in ("first", "second"):
        change(glue.update_table, "sales", writer, VersionId=version)
    table = glue.get_table(DatabaseName="shop", Name="sales")["Table"]
    found = version, table["VersionId"], table["Parameters"]["metadata_location"]
    change(glue.create_table, "Sales", "v0")
    names = [table["Name"] for table in glue.get_tables(DatabaseName="shop")["TableList"]]
print(found, names)
assert (found, names) == (("1", "3", "second"), ["sales", "Sales"]), "the behaviour has changed"
PYTHON
