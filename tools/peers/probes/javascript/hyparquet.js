// hyparquet: reads the files that process.py asks for; it takes no keys.
import { readFileSync } from 'node:fs'
import { parquetMetadata, parquetReadObjects } from 'hyparquet'
import { compressors } from 'hyparquet-compressors'
import { answer } from './answer.js'

answer(async (path, columns, how) => {
  const { buffer: file } = new Uint8Array(readFileSync(path))
  if (how === 'count') return String(parquetMetadata(file).num_rows)
  const rows = await parquetReadObjects({ file, compressors, columns })
  return `${rows.length} x ${Object.keys(rows[0]).length}`
})
