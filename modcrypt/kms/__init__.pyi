"""The public names of the package, and the modules that define them."""

from modcrypt.kms.audit import AuditEvent as AuditEvent
from modcrypt.kms.audit import audit_to_json_lines as audit_to_json_lines
from modcrypt.kms.audit import audit_to_logging as audit_to_logging
from modcrypt.kms.client import Capabilities as Capabilities
from modcrypt.kms.client import KeyAdmin as KeyAdmin
from modcrypt.kms.client import KmsClient as KmsClient
from modcrypt.kms.client import MasterKey as MasterKey
from modcrypt.kms.recipients.recipient import read_recipients as read_recipients
from modcrypt.kms.recipients.recipient_encryption import RecipientEncryption as RecipientEncryption
from modcrypt.kms.references import open_kms as open_kms
from modcrypt.kms.services.pyarrow_clients import as_pyarrow_client as as_pyarrow_client
from modcrypt.kms.services.pyarrow_clients import from_pyarrow_client as from_pyarrow_client
from modcrypt.kms.signing.required_seal import RequiredSeal as RequiredSeal
from modcrypt.kms.signing.signing_keys import VerifyingKey as VerifyingKey
from modcrypt.pkmt1.key_info import KeyInfo as KeyInfo
