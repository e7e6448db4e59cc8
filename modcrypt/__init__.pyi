"""The public names of the package, the modules that define them, and its public packages."""

from modcrypt import ags1 as ags1
from modcrypt import errors as errors
from modcrypt import jobs as jobs
from modcrypt import kms as kms
from modcrypt import lake as lake
from modcrypt import parquet as parquet
from modcrypt import report as report
from modcrypt.ags1.files import decrypt_ags1 as decrypt_ags1
from modcrypt.ags1.files import encrypt_ags1 as encrypt_ags1
from modcrypt.errors import ModcryptError as ModcryptError
from modcrypt.jobs.dataset_verification import verify_dataset as verify_dataset
from modcrypt.keys import Key as Key
from modcrypt.kms.key_tools import KeyTools as KeyTools
from modcrypt.kms.keyring.keyring import Keyring as Keyring
from modcrypt.kms.policy import Policy as Policy
from modcrypt.kms.recipients.identity import Identity as Identity
from modcrypt.kms.recipients.recipient import Recipient as Recipient
from modcrypt.kms.settings import Settings as Settings
from modcrypt.kms.signing.signing_keys import SigningKey as SigningKey
from modcrypt.lake.lake import Lake as Lake
from modcrypt.parquet.arrow.parquet_file import ParquetFile as ParquetFile
from modcrypt.parquet.arrow.view import open_parquet as open_parquet
from modcrypt.parquet.arrow.writer import ParquetWriter as ParquetWriter
from modcrypt.parquet.arrow.writer import write_table as write_table
from modcrypt.parquet.convert.decryptor import decrypt_parquet as decrypt_parquet
from modcrypt.parquet.convert.encryptor import encrypt_parquet as encrypt_parquet
from modcrypt.parquet.crypto.properties import FileDecryptionProperties as FileDecryptionProperties
from modcrypt.parquet.crypto.properties import FileEncryptionProperties as FileEncryptionProperties
from modcrypt.parquet.datasets.dataset_reader import iter_batches as iter_batches
from modcrypt.parquet.datasets.dataset_reader import read_table as read_table
from modcrypt.parquet.datasets.dataset_writer import write_dataset as write_dataset
from modcrypt.parquet.pyarrow_api.pandas_frames import read_parquet as read_parquet
from modcrypt.parquet.rewrite.rekey import mask_parquet as mask_parquet
from modcrypt.parquet.rewrite.rekey import rekey_parquet as rekey_parquet
from modcrypt.parquet.rewrite.rekey import share_parquet as share_parquet
from modcrypt.parquet.verify.file_verification import verify_parquet as verify_parquet
from modcrypt.parquet.verify.inspection import inspect_parquet as inspect_parquet

__version__: str
