//! The client of arrow-rs: the `parquet` crate with its `encryption` feature.

#[path = "../../rust/client.rs"]
mod client;
#[path = "../../rust/arrow_rows.rs"]
mod rows;

use std::{error::Error, fs::File, sync::Arc};

use client::{Outcome, bytes, serve};
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::arrow::arrow_writer::ArrowWriter;
use parquet::encryption::{decrypt::FileDecryptionProperties, encrypt::FileEncryptionProperties};
use parquet::file::{metadata::PageIndexPolicy, properties::*};
use parquet::schema::types::ColumnPath;
use serde_json::{Map, Value, json};

const READ: [&str; 9] = [
    "encrypted-footer", "plaintext-footer", "column-keys", "aad-prefix", "aes-256", "v2",
    "unchecked-footer", "page-indexes", "metadata",
];
const WRITE: [&str; 10] = [
    "encrypted-footer", "plaintext-footer", "column-keys", "aad-prefix", "aes-256", "v2",
    "page-indexes", "bloom-filters", "nested-column-keys", "rows-per-page",
];

fn main() {
    let started = json!({"name": "arrow-rs", "version": env!("PARQUET_VERSION"),
        "read": {"formats": ["parquet"], "features": READ},
        "write": {"formats": ["parquet"], "features": WRITE}});
    serve(started, |message| if message["type"] == "read" { read(message) } else { write(message) });
}

fn keys(value: &Value) -> impl Iterator<Item = (String, Vec<u8>)> + '_ {
    let members: &Map<String, Value> = value.as_object().expect("an object");
    members.iter().map(|(path, key)| (path.clone(), bytes(key).expect("a key")))
}

fn read(message: &Value) -> Outcome {
    let mut decryption = FileDecryptionProperties::builder(bytes(&message["footer_key"]).unwrap_or_default());
    for (path, key) in keys(&message["column_keys"]) {
        decryption = decryption.with_column_key(&path, key);
    }
    if let Some(prefix) = bytes(&message["aad_prefix"]) {
        decryption = decryption.with_aad_prefix(prefix);
    }
    if message["check_footer_integrity"] == json!(false) {
        decryption = decryption.disable_footer_signature_verification();
    }
    let options = ArrowReaderOptions::new()
        .with_file_decryption_properties(decryption.build()?)
        .with_page_index_policy(PageIndexPolicy::Optional)
        .with_skip_arrow_metadata(true); // types are those of Parquet
    let file = File::open(message["path"].as_str().expect("a path"))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options)?;
    if message["operation"] == json!("metadata") {
        let groups = builder.metadata().row_groups();
        let columns = groups.iter().flat_map(|group| group.columns());
        let paths: Vec<_> = columns.map(|chunk| chunk.column_path().string()).collect();
        return Ok(json!({"outcome": "metadata", "columns": paths}));
    }
    let schema = builder.schema().clone();
    let mut found = vec![];
    for batch in builder.build()? {
        rows::append(&batch?, &mut found)?;
    }
    let columns: Vec<_> = schema.fields().iter().map(|field| field.name().clone()).collect();
    Ok(json!({"outcome": "rows", "columns": columns, "rows": found}))
}

fn write(message: &Value) -> Outcome {
    let options = &message["options"];
    if options["algorithm"] != json!("AES_GCM_V1") || options["plaintext_columns"] != json!([]) {
        return Err("unsupported: AES_GCM_CTR_V1, or plaintext columns beside uniform ones".into());
    }
    let input = File::open(message["input"].as_str().expect("a path"))?;
    let reader = ParquetRecordBatchReaderBuilder::try_new(input)?;
    let schema = reader.schema().clone();
    let out = File::create(message["path"].as_str().expect("a path"))?;
    let mut writer = ArrowWriter::try_new(out, schema, Some(properties(message)?))?;
    for batch in reader.build()? {
        writer.write(&batch?)?;
    }
    writer.close()?;
    Ok(json!({"outcome": "written"}))
}

fn properties(message: &Value) -> Result<WriterProperties, Box<dyn Error>> {
    let options = &message["options"];
    let v2 = options["data_page_version"] == json!(2);
    let version = if v2 { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 };
    let indexed = options["write_page_index"] == json!(true);
    let statistics = if indexed { EnabledStatistics::Page } else { EnabledStatistics::Chunk };
    let mut builder = WriterProperties::builder()
        .set_writer_version(version)
        .set_statistics_enabled(statistics)
        .with_file_encryption_properties(encryption(message)?);
    if let Some(rows) = options["max_rows_per_page"].as_u64() {
        builder = builder.set_data_page_row_count_limit(rows as usize).set_write_batch_size(rows as usize);
        builder = builder.set_dictionary_enabled(false);
    }
    if let Some(rows) = options["row_group_size"].as_u64() {
        builder = builder.set_max_row_group_row_count(Some(rows as usize));
    }
    for name in options["bloom_filter_columns"].as_array().expect("an array") {
        builder = builder.set_column_bloom_filter_enabled(ColumnPath::from(name.as_str().expect("a name")), true);
    }
    Ok(builder.build())
}

fn encryption(message: &Value) -> Result<Arc<FileEncryptionProperties>, Box<dyn Error>> {
    let options = &message["options"];
    let mut builder = FileEncryptionProperties::builder(bytes(&message["footer_key"]).expect("a key"))
        .with_plaintext_footer(options["plaintext_footer"] == json!(true));
    if let Some(prefix) = bytes(&options["aad_prefix"]) {
        builder = builder.with_aad_prefix(prefix).with_aad_prefix_storage(options["store_aad_prefix"] == json!(true));
    }
    for (path, key) in keys(&message["column_keys"]) {
        builder = builder.with_column_key(&path, key);
    }
    Ok(builder.build()?)
}
