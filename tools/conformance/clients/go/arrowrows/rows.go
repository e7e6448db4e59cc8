// Package arrowrows makes tagged values of Arrow arrays.
package arrowrows

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"

	"conformance/client"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

type object = client.Object

// Result returns the outcome of a read that found a table.
func Result(table arrow.Table) object {
	columns, rows := []string{}, []any{}
	for _, field := range table.Schema().Fields() {
		columns = append(columns, field.Name)
	}
	batches := array.NewTableReader(table, table.NumRows())
	for batches.Next() {
		rows = appendRows(rows, batches.RecordBatch())
	}
	return object{"outcome": "rows", "columns": columns, "rows": rows}
}

func appendRows(rows []any, batch arrow.RecordBatch) []any {
	for row := range int(batch.NumRows()) {
		values := []any{}
		for _, column := range batch.Columns() {
			values = append(values, tag(column, row))
		}
		rows = append(rows, values)
	}
	return rows
}

func tag(values arrow.Array, row int) any {
	if values.IsNull(row) {
		return nil
	}
	switch typed := values.(type) {
	case *array.Boolean:
		return object{"boolean": typed.Value(row)}
	case *array.Int8, *array.Int16, *array.Int32, *array.Int64,
		*array.Uint8, *array.Uint16, *array.Uint32, *array.Uint64:
		return object{values.DataType().Name(): values.ValueStr(row)}
	case *array.Float32:
		return object{"float": fmt.Sprintf("%08x", math.Float32bits(typed.Value(row)))}
	case *array.Float64:
		return object{"double": fmt.Sprintf("%016x", math.Float64bits(typed.Value(row)))}
	case *array.String:
		return object{"string": hex.EncodeToString([]byte(typed.Value(row)))}
	case *array.Binary:
		return object{"binary": hex.EncodeToString(typed.Value(row))}
	case *array.Date32:
		return object{"date": fmt.Sprint(int32(typed.Value(row)))}
	case *array.Timestamp:
		kind, zone := typed.DataType().(*arrow.TimestampType), ""
		if kind.TimeZone != "" {
			zone = ",UTC"
		}
		return object{fmt.Sprintf("timestamp[%s%s]", kind.Unit, zone): fmt.Sprint(int64(typed.Value(row)))}
	case *array.Decimal128:
		kind := typed.DataType().(*arrow.Decimal128Type)
		name := fmt.Sprintf("decimal(%d,%d)", kind.Precision, kind.Scale)
		return object{name: typed.Value(row).BigInt().String()}
	case *array.List:
		start, end := typed.ValueOffsets(row)
		items := []any{}
		for at := start; at < end; at++ {
			items = append(items, tag(typed.ListValues(), int(at)))
		}
		return object{"list": items}
	case *array.Struct:
		pairs := []any{}
		for at, field := range typed.DataType().(*arrow.StructType).Fields() {
			pairs = append(pairs, []any{field.Name, tag(typed.Field(at), row)})
		}
		return object{"struct": pairs}
	}
	client.Refuse(fmt.Errorf("no tag for %s: %w", values.DataType(), errors.ErrUnsupported))
	return nil
}
