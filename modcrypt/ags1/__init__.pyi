"""The public names of the package, and the modules that define them."""

from modcrypt.ags1.files import Ags1Summary as Ags1Summary
from modcrypt.ags1.files import inspect_ags1 as inspect_ags1
from modcrypt.ags1.lengths import UNVERIFIED as UNVERIFIED
from modcrypt.ags1.reader import Ags1Reader as Ags1Reader
from modcrypt.ags1.reader import decrypt as decrypt
from modcrypt.ags1.writer import Ags1Writer as Ags1Writer
from modcrypt.ags1.writer import encrypt as encrypt
from modcrypt.keys.metadata import StandardKeyMetadata as StandardKeyMetadata
from modcrypt.module_ids import BlockId as BlockId
