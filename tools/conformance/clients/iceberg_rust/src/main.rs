//! The client of iceberg-rust: AGS1 streams and standard key metadata.

use std::io::BufRead;

use iceberg::encryption::{EncryptedInputFile, EncryptedOutputFile, StandardKeyMetadata};
use iceberg::io::FileIO;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

type Outcome = Result<Value, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() {
    for line in std::io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line.expect("input")).expect("JSON");
        let stream = message["format"] == json!("ags1");
        let outcome = match (message["type"].as_str(), stream) {
            (Some("stop"), _) => return,
            (Some("start"), _) => {
                println!("{}", started());
                continue;
            }
            (Some("read"), true) => decrypt(&message).await,
            (Some("read"), false) => decode(&message),
            (_, true) => encrypt(&message).await,
            (_, false) => encode(&message),
        };
        let mut answer =
            outcome.unwrap_or_else(|error| json!({"outcome": "error", "message": error.to_string()}));
        answer["type"] = json!("result");
        answer["id"] = message["id"].clone();
        println!("{answer}");
    }
}

fn started() -> Value {
    // The length in key metadata is not compared with the file's: only what needs no trusted length.
    let abilities = json!({"formats": ["ags1", "key-metadata"], "features": ["unverified-length"]});
    json!({"type": "started", "protocol": 1, "name": "iceberg-rust", "version": env!("ICEBERG_VERSION"),
        "read": abilities, "write": abilities})
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    value.as_str().map(|text| hex::decode(text).expect("hex"))
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
