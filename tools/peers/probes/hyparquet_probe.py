"""hyparquet: `parquetMetadata` and `parquetReadObjects`, which have no decryption."""

from __future__ import annotations

import process
import steps

BUILD = [["npm", "install", "--silent", "--no-audit", "--no-fund"]]
with process.start("javascript", BUILD, ["node", "{build}/hyparquet.js"]) as read:
    steps.run(process.keyless_file_steps(read))
