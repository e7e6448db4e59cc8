"""The extras of pyproject.toml, and errors that name the one to install."""

from __future__ import annotations

_MODULES = {
    "adlfs": "azure-storage", "fsspec": "fsspec", "gcsfs": "gcs", "hdfs_native": "hdfs",
    "s3fs": "s3", "click": "cli", "cloup": "cli", "rich": "cli", "jinja2": "html",
    "markupsafe": "html", "hvac": "vault", "boto3": "aws", "botocore": "aws", "pkcs11": "pkcs11",
    "py4j": "spark", "pyspark": "spark", "fastavro": "iceberg", "pyiceberg": "iceberg",
    "pyroaring": "iceberg", "sqlalchemy": "iceberg", "hive_metastore": "hive", "thrift": "hive",
    "psycopg": "subjects-postgresql",
}  # fmt: skip
"""Extras by the modules that they bring."""

_SCHEMES = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure-storage",
    "abfss": "azure-storage", "az": "azure-storage", "wasb": "azure-storage",
    "wasbs": "azure-storage", "hdfs": "hdfs", "viewfs": "hdfs",
}  # fmt: skip
"""Extras by the schemes of URLs whose file systems they bring."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f'pip install "modcrypt[{extra}]"'


def extra_of_scheme(scheme: str) -> str | None:
    """Return the extra with the file system of a URL's scheme; None if there is no such extra."""
    return _SCHEMES.get(scheme)


def missing_extra(what: str, extra: str, module: str | None = None) -> ModuleNotFoundError:
    """Return the error for something whose packages, such as `module`, are not installed."""
    return ModuleNotFoundError(f"{what} needs an extra: {install_command(extra)}", name=module)


def name_extra(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error of an import, with the extra that brings the missing module if one does."""
    module = (error.name or "").partition(".")[0]
    if module not in _MODULES or "pip install" in str(error):
        return error
    return missing_extra(f"the package {module}", _MODULES[module], error.name)
