package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/parquet-go/parquet-go"
)

func open(path string, options ...parquet.FileOption) (*parquet.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	stat, err := file.Stat()
	if err != nil {
		return nil, err
	}
	return parquet.OpenFile(file, stat.Size(), options...)
}

func read(message object) (object, error) {
	file, err := open(message["path"].(string), parquet.WithDecryption(keys{message}))
	if err != nil {
		return nil, err
	}
	columns, rows := []string{}, []any{}
	for _, field := range file.Schema().Fields() {
		if !field.Leaf() {
			return nil, fmt.Errorf("nested columns: %w", errors.ErrUnsupported)
		}
		columns = append(columns, field.Name())
	}
	for _, group := range file.RowGroups() {
		reader, buffer := group.Rows(), make([]parquet.Row, 64)
		for {
			count, err := reader.ReadRows(buffer)
			for _, row := range buffer[:count] {
				values := make([]any, len(columns))
				for _, value := range row {
					values[value.Column()] = tag(value, file.Schema().Fields()[value.Column()].Type())
				}
				rows = append(rows, values)
			}
			if err == io.EOF {
				break
			} else if err != nil {
				return nil, err
			}
		}
	}
	return object{"outcome": "rows", "columns": columns, "rows": rows}, nil
}

func tag(value parquet.Value, kind parquet.Type) any {
	switch {
	case value.IsNull():
		return nil
	case value.Kind() == parquet.Boolean:
		return object{"boolean": value.Boolean()}
	case value.Kind() == parquet.Double:
		return object{"double": fmt.Sprintf("%016x", math.Float64bits(value.Double()))}
	case value.Kind() == parquet.Int32 || value.Kind() == parquet.Int64:
		return object{map[parquet.Kind]string{parquet.Int32: "int32", parquet.Int64: "int64"}[value.Kind()]: value.String()}
	case kind.LogicalType() != nil && kind.String() == "STRING":
		return object{"string": hex.EncodeToString(value.ByteArray())}
	}
	return object{"binary": hex.EncodeToString(value.ByteArray())}
}

func write(message object) (object, error) {
	input, err := open(message["input"].(string))
	if err != nil {
		return nil, err
	}
	nodes := parquet.Group{} // without the encodings of the input, which the writer does not support
	for _, field := range input.Schema().Fields() {
		if !field.Leaf() {
			return nil, fmt.Errorf("nested columns: %w", errors.ErrUnsupported)
		}
		nodes[field.Name()] = parquet.Leaf(field.Type())
		if field.Optional() {
			nodes[field.Name()] = parquet.Optional(nodes[field.Name()])
		}
	}
	columns := map[string][]byte{}
	for path, key := range message["column_keys"].(object) {
		columns[path] = raw(key)
	}
	out, err := os.Create(message["path"].(string))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	writer := parquet.NewWriter(out, parquet.NewSchema("schema", nodes), parquet.WithEncryption(&parquet.EncryptionConfig{
		FooterKey: raw(message["footer_key"]), ColumnKeys: columns,
		EncryptedFooter: message["options"].(object)["plaintext_footer"] == false,
	}))
	for _, group := range input.RowGroups() {
		if _, err := parquet.CopyRows(writer, group.Rows()); err != nil {
			return nil, err
		}
		if err := writer.Flush(); err != nil {
			return nil, err
		}
	}
	return object{"outcome": "written"}, writer.Close()
}
