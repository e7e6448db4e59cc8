#!/bin/sh
# arrow-rs 60.1.0 needs the keys of all columns when it is asked for page indexes that are optional.
#
# Version: crate parquet 60.1.0 with the features arrow and encryption.
# Behaviour: one column of three is plaintext, under a plaintext footer. A reader without keys reads
# that column, with `PageIndexPolicy::Skip`. With `PageIndexPolicy::Optional`, by which a missing index is
# no error, the file cannot be opened at all if it has page indexes: arrow-rs decrypts those of all
# columns first, also of those that are not read. One key that is missing has the same effect.
# Seen: 4 rows with Skip; with Optional "Cannot decrypt column index, no file decryptor set", and "No
# column decryption key set for encrypted column 'b'".
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir src
cat > Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.1.0"
edition = "2024"

[dependencies]
arrow-array = "=60.1.0"
parquet = { version = "=60.1.0", default-features = false, features = ["arrow", "encryption"] }

[profile.dev]
debug = 0
TOML
cat > src/main.rs <<'RUST'
use std::{fs::File, sync::Arc};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::encryption::{decrypt::FileDecryptionProperties, encrypt::FileEncryptionProperties};
use parquet::errors::Result;
use parquet::file::{metadata::PageIndexPolicy, properties::*};

const KEY: &[u8] = b"0123456789012345";

fn write() -> Result<()> {
    let values: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4]));
    let rows = RecordBatch::try_from_iter(["a", "b", "plain"].map(|name| (name, values.clone())))?;
    let keys = FileEncryptionProperties::builder(KEY.to_vec())
        .with_plaintext_footer(true)
        .with_column_key("a", KEY.to_vec())
        .with_column_key("b", KEY.to_vec());
    let properties = WriterProperties::builder()
        .set_statistics_enabled(EnabledStatistics::Page)
        .with_file_encryption_properties(keys.build()?);
    let mut writer = ArrowWriter::try_new(File::create("rows.parquet")?, rows.schema(), Some(properties.build()))?;
    writer.write(&rows)?;
    writer.close()?;
    Ok(())
}

fn read(column: &str, keys: Option<Arc<FileDecryptionProperties>>, policy: PageIndexPolicy) -> Result<usize> {
    let mut options = ArrowReaderOptions::new().with_page_index_policy(policy);
    if let Some(keys) = keys {
        options = options.with_file_decryption_properties(keys);
    }
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(File::open("rows.parquet")?, options)?;
    let mask = ProjectionMask::columns(builder.parquet_schema(), [column]);
    let mut rows = 0;
    for batch in builder.with_projection(mask).build()? {
        rows += batch?.num_rows();
    }
    Ok(rows)
}

fn main() -> Result<()> {
    write()?;
    let keys = FileDecryptionProperties::builder(KEY.to_vec()).with_column_key("a", KEY.to_vec()).build()?;
    let mut found = vec![];
    for policy in [PageIndexPolicy::Skip, PageIndexPolicy::Optional] {
        for (column, keys) in [("plain", None), ("a", Some(keys.clone()))] {
            let seen = read(column, keys, policy);
            println!("{policy:?}, column {column}: {seen:?}");
            found.push(seen.is_ok());
        }
    }
    assert_eq!(found, [true, true, false, false], "the behaviour has changed");
    Ok(())
}
RUST
cargo run --quiet
