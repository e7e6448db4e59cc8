// The protocol of process.py.
import { createInterface } from 'node:readline'

export async function answer(read) {
  for await (const line of createInterface({ input: process.stdin })) {
    const [path, columns, , , , how] = line.split('\t')
    try {
      console.log(`ok\t${await read(path, columns ? columns.split(',') : undefined, how)}`)
    } catch (error) {
      console.log(`Error\t${String(error.message ?? error).replaceAll('\n', ' ')}`)
    }
  }
}
