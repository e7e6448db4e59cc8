#!/bin/sh
# arrow-rs 60.1.0 asks a key retriever seven times for each column chunk: 281 requests for 11 keys.
#
# Version: crate parquet 60.1.0 with the features arrow and encryption.
# Behaviour: a `KeyRetriever` is given key metadata and returns a key, for example from a key service. The
# reader does not keep what it returns: the metadata, pages and page indexes of each column chunk ask
# anew, three times without page indexes and seven times with them.
# Seen, for 10 columns with a key each in 4 row groups: 121 requests without page indexes, 281 with them;
# the file has 11 keys.
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
use std::collections::HashSet;
use std::fs::File;
use std::sync::{Arc, Mutex};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::encryption::decrypt::{FileDecryptionProperties, KeyRetriever};
use parquet::encryption::encrypt::FileEncryptionProperties;
use parquet::errors::Result;
use parquet::file::{metadata::PageIndexPolicy, properties::*};

const KEY: &[u8] = b"0123456789012345";

/// Returns the key, and notes the key metadata of each request.
struct Requests(Mutex<Vec<Vec<u8>>>);

impl KeyRetriever for Requests {
    fn retrieve_key(&self, key_metadata: &[u8]) -> Result<Vec<u8>> {
        self.0.lock().expect("a lock").push(key_metadata.to_vec());
        Ok(KEY.to_vec())
    }
}

fn write(names: &[String]) -> Result<()> {
    let values: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4]));
    let rows = RecordBatch::try_from_iter(names.iter().map(|name| (name, values.clone())))?;
    let mut keys = FileEncryptionProperties::builder(KEY.to_vec()).with_footer_key_metadata(b"footer".to_vec());
    for name in names {
        keys = keys.with_column_key_and_metadata(name, KEY.to_vec(), name.clone().into_bytes());
    }
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(1))
        .set_statistics_enabled(EnabledStatistics::Page)
        .with_file_encryption_properties(keys.build()?);
    let mut writer = ArrowWriter::try_new(File::create("rows.parquet")?, rows.schema(), Some(properties.build()))?;
    writer.write(&rows)?;
    writer.close()?;
    Ok(())
}

fn main() -> Result<()> {
    write(&(0..10).map(|number| format!("c{number}")).collect::<Vec<_>>())?;
    let mut found = vec![];
    for policy in [PageIndexPolicy::Skip, PageIndexPolicy::Optional] {
        let retriever = Arc::new(Requests(Mutex::default()));
        let options = ArrowReaderOptions::new()
            .with_page_index_policy(policy)
            .with_file_decryption_properties(FileDecryptionProperties::with_key_retriever(retriever.clone()).build()?);
        let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(File::open("rows.parquet")?, options)?;
        let rows: usize = builder.build()?.map(|batch| batch.expect("a batch").num_rows()).sum();
        let requests = retriever.0.lock().expect("a lock");
        let keys: HashSet<_> = requests.iter().collect();
        println!("{policy:?}: {rows} rows, {} requests for {} keys", requests.len(), keys.len());
        found.push((requests.len(), keys.len()));
    }
    assert_eq!(found, [(121, 11), (281, 11)], "the behaviour has changed");
    Ok(())
}
RUST
cargo run --quiet
