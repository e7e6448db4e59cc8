"""The public names of the package, and the modules that define them."""

from modcrypt.kms.settings import Settings as Settings
from modcrypt.spark.jobs.iceberg_jobs import rotate_table_deks as rotate_table_deks
from modcrypt.spark.jobs.iceberg_jobs import rotate_table_keks as rotate_table_keks
from modcrypt.spark.jobs.lake_jobs import apply as apply
from modcrypt.spark.jobs.lake_jobs import verify as verify
from modcrypt.spark.jobs.shredding import prove_shredded as prove_shredded
from modcrypt.spark.jobs.shredding import shred_keys as shred_keys
from modcrypt.spark.jobs.table_jobs import decrypt_table as decrypt_table
from modcrypt.spark.jobs.table_jobs import encrypt_table as encrypt_table
from modcrypt.spark.jobs.table_jobs import inspect_table as inspect_table
from modcrypt.spark.jobs.table_jobs import mask_table as mask_table
from modcrypt.spark.jobs.table_jobs import rekey_table as rekey_table
from modcrypt.spark.jobs.table_jobs import rotate_keys as rotate_keys
from modcrypt.spark.jobs.table_jobs import scan_keys as scan_keys
from modcrypt.spark.jobs.table_jobs import share_table as share_table
from modcrypt.spark.jobs.table_jobs import verify_table as verify_table
from modcrypt.spark.jvm.java_home import java_home as java_home
from modcrypt.spark.jvm.native_jar import spark_jar as spark_jar
from modcrypt.spark.jvm.native_jar import spark_repository as spark_repository
from modcrypt.spark.jvm.native_parquet import native as native
from modcrypt.spark.jvm.native_parquet import native_options as native_options
from modcrypt.spark.jvm.native_parquet import native_sql as native_sql
from modcrypt.spark.jvm.sql_catalog import register_sql as register_sql
from modcrypt.spark.shipping import spark_package as spark_package
