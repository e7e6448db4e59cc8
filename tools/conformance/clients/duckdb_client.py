"""The client of DuckDB: uniform files in GCM with an encrypted footer."""

from __future__ import annotations

import base64

import duckdb

from tools.conformance.clients.arrow_rows import tagged_rows
from tools.conformance.clients.client_loop import Json, UnsupportedError, abilities, serve

READ = ["encrypted-footer", "aes-256"]
WRITE = ["encrypted-footer", "aes-256"]
NO_SHORT_KEYS = "24 or 32 characters of base64 are taken for the key itself"


def read(request: Json) -> Json:
    if request["column_keys"] or request["aad_prefix"] or request["operation"] != "rows":
        raise UnsupportedError("DuckDB has no column keys, AAD prefix or metadata of columns")
    with connect(request) as database:
        query = f"FROM read_parquet('{request['path']}', encryption_config={{footer_key: 'k'}})"
        try:
            table = database.execute(query).to_arrow_table()
        except duckdb.Error as error:
            raise type(error)(str(error).partition("\n\nLINE 1:")[0]) from None  # not the query
        return {"outcome": "rows", **tagged_rows(table)}


def write(request: Json) -> Json:
    options = request["options"]
    if request["column_keys"] or options["plaintext_columns"]:
        raise UnsupportedError("DuckDB has no column keys")
    size = options["row_group_size"]
    more = f", ROW_GROUP_SIZE {size}" if size else ""
    with connect(request) as database:
        database.execute(
            f"COPY (FROM read_parquet('{request['input']}')) TO '{request['path']}' "
            f"(FORMAT parquet, ENCRYPTION_CONFIG {{footer_key: 'k'}}{more})"
        )
    return {"outcome": "written"}


def connect(request: Json) -> duckdb.DuckDBPyConnection:
    """Return a database of its own: a failure may invalidate it."""
    if request["footer_key"] is not None and len(request["footer_key"]) < 64:
        raise UnsupportedError(NO_SHORT_KEYS)
    database = duckdb.connect()
    database.execute("SET force_mbedtls_unsafe = 'true'")  # else it writes nothing encrypted
    if request["footer_key"] is not None:
        key = base64.b64encode(bytes.fromhex(request["footer_key"])).decode()
        database.execute(f"PRAGMA add_parquet_key('k', '{key}')")
    return database


if __name__ == "__main__":
    declared = {"read": abilities(["parquet"], READ), "write": abilities(["parquet"], WRITE)}
    serve({"name": "DuckDB", "version": duckdb.__version__, **declared}, read, write)
