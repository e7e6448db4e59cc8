#!/bin/sh
# arrow-rs 60.1.0 flags pages of lists as pages of nulls although they have values.
#
# Version: crate parquet 60.1.0 with the feature arrow.
# Behaviour: the writer compares the nulls of a page with its rows, not with its values. A page of two
# lists, each of a null and a number, has two nulls and two rows: the column index flags it as a page
# of nulls, and leaves out its bounds. A reader that believes the flag does not look at the numbers.
# Seen: two pages, [null, 1] and [null, 2], then [3]; the first is flagged, and has 4 levels with 2 values.
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
parquet = { version = "=60.1.0", default-features = false, features = ["arrow"] }

[profile.dev]
debug = 0
TOML
cat > src/main.rs <<'RUST'
use std::{fs::File, sync::Arc};

use arrow_array::{ArrayRef, ListArray, RecordBatch, types::Int32Type};
use parquet::arrow::ArrowWriter;
use parquet::errors::Result;
use parquet::file::{metadata::{PageIndexPolicy, ParquetMetaDataReader}, properties::*};

fn main() -> Result<()> {
    let lists = [vec![None, Some(1)], vec![None, Some(2)], vec![Some(3)]].map(Some);
    let column: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
    let rows = RecordBatch::try_from_iter([("lists", column)])?;
    let properties = WriterProperties::builder()
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_write_batch_size(1)
        .set_data_page_row_count_limit(2);
    let mut writer = ArrowWriter::try_new(File::create("rows.parquet")?, rows.schema(), Some(properties.build()))?;
    writer.write(&rows)?;
    writer.close()?;

    let metadata = ParquetMetaDataReader::new()
        .with_page_index_policy(PageIndexPolicy::Required)
        .parse_and_finish(&File::open("rows.parquet")?)?;
    let indexes = metadata.page_index_for_row_group(0);
    let index = indexes.column_index(0).expect("a column index");
    let mut found = vec![];
    for page in 0..index.num_pages() as usize {
        let levels = index.definition_level_histogram(page).expect("numbers of levels");
        let values = *levels.last().expect("a level");
        println!("page {page}: null page {}, nulls {:?}, values {values}", index.is_null_page(page), index.null_count(page));
        found.push((index.is_null_page(page), values));
    }
    assert_eq!(found, [(true, 2), (false, 1)], "the behaviour has changed");
    Ok(())
}
RUST
cargo run --quiet
