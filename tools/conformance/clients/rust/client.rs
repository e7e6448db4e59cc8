//! What the clients in Rust share: the loop of messages, and bytes as hex.

use std::io::BufRead;

use serde_json::{Value, json};

pub type Outcome = Result<Value, Box<dyn std::error::Error>>;

/// Answers messages until `stop` or the end of input; the operation reads or writes.
pub fn serve(mut started: Value, mut operation: impl FnMut(&Value) -> Outcome) {
    started["type"] = json!("started");
    started["protocol"] = json!(1);
    for line in std::io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line.expect("input")).expect("JSON");
        match message["type"].as_str() {
            Some("stop") => return,
            Some("start") => println!("{started}"),
            _ => println!("{}", answer(&message, operation(&message))),
        }
    }
}

fn answer(message: &Value, outcome: Outcome) -> Value {
    let mut answer = outcome.unwrap_or_else(|error| {
        let text = error.to_string();
        let kind = if text.contains("unsupported:") { "unsupported" } else { "error" };
        json!({"outcome": kind, "message": text})
    });
    answer["type"] = json!("result");
    answer["id"] = message["id"].clone();
    answer
}

pub fn bytes(value: &Value) -> Option<Vec<u8>> {
    value.as_str().map(|text| hex::decode(text).expect("hex"))
}
