//! The client of iceberg-rust: AGS1 streams and standard key metadata.

#[path = "../../rust/client.rs"]
mod client;

use client::{Outcome, bytes, serve};
use iceberg::encryption::{EncryptedInputFile, EncryptedOutputFile, StandardKeyMetadata};
use iceberg::io::FileIO;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn main() {
    // The length in key metadata is not compared with the file's: only what needs no trusted length.
    let abilities = json!({"formats": ["ags1", "key-metadata"], "features": ["unverified-length"]});
    let started = json!({"name": "iceberg-rust", "version": env!("ICEBERG_VERSION"),
        "read": abilities, "write": abilities});
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    serve(started, |message| match (message["type"] == "read", message["format"] == "ags1") {
        (true, true) => runtime.block_on(decrypt(message)),
        (true, false) => decode(message),
        (false, true) => runtime.block_on(encrypt(message)),
        (false, false) => encode(message),
    });
}

fn key_metadata(message: &Value, length: &str) -> StandardKeyMetadata {
    let mut metadata = StandardKeyMetadata::new(&bytes(&message["key"]).expect("a key"));
    if let Some(prefix) = bytes(&message["aad_prefix"]) {
        metadata = metadata.with_aad_prefix(&prefix);
    }
    if let Some(length) = message[length].as_u64() {
        metadata = metadata.with_file_length(length);
    }
    metadata
}

async fn decrypt(message: &Value) -> Outcome {
    let input = FileIO::new_with_fs().new_input(message["path"].as_str().expect("a path"))?;
    let file = EncryptedInputFile::new(input, key_metadata(message, "length"));
    let content = file.read().await?;
    let digest = hex::encode(Sha256::digest(&content));
    Ok(json!({"outcome": "bytes", "length": content.len(), "sha256": digest}))
}

async fn encrypt(message: &Value) -> Outcome {
    let content = std::fs::read(message["input"].as_str().expect("a path"))?;
    let output = FileIO::new_with_fs().new_output(message["path"].as_str().expect("a path"))?;
    EncryptedOutputFile::new(output, key_metadata(message, "length")).write(content.into()).await?;
    Ok(json!({"outcome": "written"}))
}

fn decode(message: &Value) -> Outcome {
    let found = StandardKeyMetadata::decode(&bytes(&message["bytes"]).expect("bytes"))?;
    Ok(json!({"outcome": "key", "key": hex::encode(found.encryption_key().as_bytes()),
        "aad_prefix": found.aad_prefix().map(hex::encode), "file_length": found.file_length()}))
}

fn encode(message: &Value) -> Outcome {
    if message["file_length"].as_i64().is_some_and(|length| length < 0) {
        return Ok(json!({"outcome": "unsupported", "message": "a length is unsigned"}));
    }
    let encoded = key_metadata(message, "file_length").encode()?;
    Ok(json!({"outcome": "encoded", "bytes": hex::encode(encoded)}))
}
