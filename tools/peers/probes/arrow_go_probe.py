"""arrow-go: `file.NewParquetReader` with `FileDecryptionProperties`."""

from __future__ import annotations

import process
import steps

BUILD = [["go", "mod", "tidy"], ["go", "build", "-o", "probe", "."]]
with process.start("arrow_go", BUILD, ["{build}/probe"]) as read:
    steps.run(process.file_steps(read))
