//! Rows of Arrow arrays as tagged values.

use arrow_array::{cast::AsArray, types::*, *};
use arrow_schema::{ArrowError, DataType, TimeUnit};
use serde_json::{Value, json};

pub fn append(batch: &RecordBatch, rows: &mut Vec<Value>) -> Result<(), ArrowError> {
    for row in 0..batch.num_rows() {
        let values: Result<Vec<_>, _> = batch.columns().iter().map(|column| tag(column, row)).collect();
        rows.push(json!(values?));
    }
    Ok(())
}

macro_rules! number {
    ($array:expr, $row:expr, $kind:ty, $tag:expr) => {
        json!({$tag: $array.as_primitive::<$kind>().value($row).to_string()})
    };
}

fn tag(array: &ArrayRef, row: usize) -> Result<Value, ArrowError> {
    if array.is_null(row) {
        return Ok(Value::Null);
    }
    Ok(match array.data_type() {
        DataType::Boolean => json!({"boolean": array.as_boolean().value(row)}),
        DataType::Int8 => number!(array, row, Int8Type, "int8"),
        DataType::Int16 => number!(array, row, Int16Type, "int16"),
        DataType::Int32 => number!(array, row, Int32Type, "int32"),
        DataType::Int64 => number!(array, row, Int64Type, "int64"),
        DataType::UInt8 => number!(array, row, UInt8Type, "uint8"),
        DataType::UInt16 => number!(array, row, UInt16Type, "uint16"),
        DataType::UInt32 => number!(array, row, UInt32Type, "uint32"),
        DataType::UInt64 => number!(array, row, UInt64Type, "uint64"),
        DataType::Float32 => {
            json!({"float": format!("{:08x}", array.as_primitive::<Float32Type>().value(row).to_bits())})
        }
        DataType::Float64 => {
            json!({"double": format!("{:016x}", array.as_primitive::<Float64Type>().value(row).to_bits())})
        }
        DataType::Utf8 => json!({"string": hex::encode(array.as_string::<i32>().value(row))}),
        DataType::Binary => json!({"binary": hex::encode(array.as_binary::<i32>().value(row))}),
        DataType::Date32 => number!(array, row, Date32Type, "date"),
        DataType::Timestamp(unit, zone) => timestamp(array, row, unit, zone.is_some()),
        DataType::Decimal128(precision, scale) => {
            let value = array.as_primitive::<Decimal128Type>().value(row);
            json!({format!("decimal({precision},{scale})"): value.to_string()})
        }
        DataType::List(_) => {
            let items = array.as_list::<i32>().value(row);
            let values: Result<Vec<_>, _> = (0..items.len()).map(|at| tag(&items, at)).collect();
            json!({"list": values?})
        }
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let pairs = fields.iter().zip(columns);
            let values: Result<Vec<_>, ArrowError> =
                pairs.map(|(field, column)| Ok(json!([field.name(), tag(column, row)?]))).collect();
            json!({"struct": values?})
        }
        other => return Err(ArrowError::NotYetImplemented(format!("unsupported: no tag for {other}"))),
    })
}

fn timestamp(array: &ArrayRef, row: usize, unit: &TimeUnit, utc: bool) -> Value {
    let (name, value) = match unit {
        TimeUnit::Second => ("s", array.as_primitive::<TimestampSecondType>().value(row)),
        TimeUnit::Millisecond => ("ms", array.as_primitive::<TimestampMillisecondType>().value(row)),
        TimeUnit::Microsecond => ("us", array.as_primitive::<TimestampMicrosecondType>().value(row)),
        TimeUnit::Nanosecond => ("ns", array.as_primitive::<TimestampNanosecondType>().value(row)),
    };
    let zone = if utc { ",UTC" } else { "" };
    json!({format!("timestamp[{name}{zone}]"): value.to_string()})
}
