// parquet-wasm: reads the files that process.py asks for; it takes no keys.
import { readFileSync } from 'node:fs'
import { tableFromIPC } from 'apache-arrow'
import { ParquetFile, readParquet } from 'parquet-wasm/node'
import { answer } from './answer.js'

answer(async (path, columns, how) => {
  const content = new Uint8Array(readFileSync(path))
  if (!how) return shape(readParquet(content, { columns }))
  const file = await ParquetFile.fromFile(new Blob([content]))
  if (how === 'count') return String(file.metadata().fileMetadata().numRows())
  return shape(await file.read({ columns }))
})

function shape(wasm) {
  const table = tableFromIPC(wasm.intoIPCStream())
  return `${table.numRows} x ${table.numCols}`
}
