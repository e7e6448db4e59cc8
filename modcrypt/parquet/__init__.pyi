"""The names of `pyarrow.parquet` that the package offers, and the modules that define them."""

from pyarrow.parquet import ColumnChunkMetaData as ColumnChunkMetaData
from pyarrow.parquet import ColumnSchema as ColumnSchema
from pyarrow.parquet import FileMetaData as FileMetaData
from pyarrow.parquet import ParquetLogicalType as ParquetLogicalType
from pyarrow.parquet import ParquetSchema as ParquetSchema
from pyarrow.parquet import RowGroupMetaData as RowGroupMetaData
from pyarrow.parquet import SortingColumn as SortingColumn
from pyarrow.parquet import Statistics as Statistics
from pyarrow.parquet import filters_to_expression as filters_to_expression

from modcrypt.keys import KeyRetriever as KeyRetriever
from modcrypt.module_ids import ModuleId as ModuleId
from modcrypt.module_ids import ModuleType as ModuleType
from modcrypt.parquet.crypto.properties import FileDecryptionProperties as FileDecryptionProperties
from modcrypt.parquet.crypto.properties import FileEncryptionProperties as FileEncryptionProperties
from modcrypt.parquet.format.findings import Finding as Finding
from modcrypt.parquet.format.findings import Unauthenticated as Unauthenticated
from modcrypt.parquet.pyarrow_api.datasets import ParquetDataset as ParquetDataset
from modcrypt.parquet.pyarrow_api.datasets import read_pandas as read_pandas
from modcrypt.parquet.pyarrow_api.datasets import read_table as read_table
from modcrypt.parquet.pyarrow_api.files import ParquetFile as ParquetFile
from modcrypt.parquet.pyarrow_api.files import read_metadata as read_metadata
from modcrypt.parquet.pyarrow_api.files import read_schema as read_schema
from modcrypt.parquet.pyarrow_api.writing import ParquetWriter as ParquetWriter
from modcrypt.parquet.pyarrow_api.writing import write_metadata as write_metadata
from modcrypt.parquet.pyarrow_api.writing import write_table as write_table
from modcrypt.parquet.pyarrow_api.writing import write_to_dataset as write_to_dataset
from modcrypt.parquet.rewrite.file_rewrite import Rewritten as Rewritten
from modcrypt.parquet.verify.inspection import ColumnInspection as ColumnInspection
from modcrypt.parquet.verify.inspection import Inspection as Inspection
from modcrypt.parquet.verify.verification_results import DatasetVerification as DatasetVerification
from modcrypt.parquet.verify.verification_results import Verification as Verification
