"""Read, write and verify encrypted Iceberg tables, and rotate their keys.

table = modcrypt.iceberg.open_table("warehouse/orders/metadata/v3.metadata.json", kms)
table.scan(columns=["id"], filters="id > 5")
"""

from modcrypt.runtime.lazy_names import attach

__getattr__, __dir__ = attach(__name__)
