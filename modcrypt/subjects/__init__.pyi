"""The public names of the package, and the modules that define them."""

from modcrypt.subjects.declaration import Subjects as Subjects
from modcrypt.subjects.vault import SubjectVault as SubjectVault
from modcrypt.subjects.vault import create_vault as create_vault
from modcrypt.subjects.vault import open_vault as open_vault
