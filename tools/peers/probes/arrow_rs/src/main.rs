//! arrow-rs: reads the files that `process.py` asks for.

use std::{error::Error, fs::File, io};

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::encryption::decrypt::FileDecryptionProperties;
use parquet::file::metadata::PageIndexPolicy;

fn main() {
    for line in io::stdin().lines() {
        let line = line.expect("a line");
        let fields: Vec<&str> = line.split('\t').collect();
        match read(&fields) {
            Ok(seen) => println!("ok\t{seen}"),
            Err(error) => println!("ParquetError\t{}", error.to_string().replace('\n', " ")),
        }
    }
}

fn read(fields: &[&str]) -> Result<String, Box<dyn Error>> {
    let [path, columns, footer_key, prefix, column_keys, how] = fields else { return Err("six fields".into()) };
    let policy = if *how == "indexes" { PageIndexPolicy::Optional } else { PageIndexPolicy::Skip };
    let mut options = ArrowReaderOptions::new().with_page_index_policy(policy);
    if !footer_key.is_empty() {
        let mut keys = FileDecryptionProperties::builder(decode(footer_key)?);
        if let Some(prefix) = prefix.strip_prefix('=') {
            keys = keys.with_aad_prefix(decode(prefix)?);
        }
        for pair in column_keys.split(',').filter(|pair| !pair.is_empty()) {
            let (name, key) = pair.split_once('=').ok_or("name=key")?;
            keys = keys.with_column_key(name, decode(key)?);
        }
        options = options.with_file_decryption_properties(keys.build()?);
    }
    let mut builder = ParquetRecordBatchReaderBuilder::try_new_with_options(File::open(path)?, options)?;
    if *how == "count" {
        return Ok(builder.metadata().file_metadata().num_rows().to_string());
    }
    if !columns.is_empty() {
        let mask = ProjectionMask::columns(builder.parquet_schema(), columns.split(','));
        builder = builder.with_projection(mask);
    }
    let (mut rows, mut width) = (0, 0);
    for batch in builder.build()? {
        let batch = batch?;
        rows += batch.num_rows();
        width = batch.num_columns();
    }
    Ok(format!("{rows} x {width}"))
}

fn decode(hex: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let pairs = (0..hex.len()).step_by(2);
    Ok(pairs.map(|at| u8::from_str_radix(&hex[at..at + 2], 16)).collect::<Result<_, _>>()?)
}
