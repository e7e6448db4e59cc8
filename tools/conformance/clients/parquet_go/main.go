// The client of parquet-go: flat tables of a few types, which is enough to see whether anybody reads it.
package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"conformance/client"

	"github.com/parquet-go/parquet-go"
)

type object = client.Object

var features = []string{"encrypted-footer", "plaintext-footer", "column-keys", "aes-192", "aes-256"}

func main() {
	abilities := object{"formats": []string{"parquet"}, "features": features}
	client.Serve(object{"name": "parquet-go", "version": client.Version("github.com/parquet-go/parquet-go"),
		"read": abilities, "write": abilities}, read, write)
}

// keys finds keys by column, whatever key metadata says.
type keys struct{ message object }

func (k keys) FooterKey([]byte) ([]byte, error) { return client.Raw(k.message["footer_key"]), nil }

func (k keys) ColumnKey(path []string, _ []byte) ([]byte, error) {
	name := strings.Join(path, ".")
	key, given := k.message["column_keys"].(object)[name]
	if !given {
		return nil, fmt.Errorf("no key for %s: %w", name, parquet.ErrKeyNotFound)
	}
	return client.Raw(key), nil
}

func open(path any, options ...parquet.FileOption) *parquet.File {
	file := client.Must(os.Open(path.(string)))
	return client.Must(parquet.OpenFile(file, client.Must(file.Stat()).Size(), options...))
}

func flatFields(file *parquet.File) []parquet.Field {
	for _, field := range file.Schema().Fields() {
		if !field.Leaf() {
			client.Refuse(fmt.Errorf("nested columns: %w", errors.ErrUnsupported))
		}
	}
	return file.Schema().Fields()
}

func read(message object) object {
	file := open(message["path"], parquet.WithDecryption(keys{message}))
	columns, rows, fields := []string{}, []any{}, flatFields(file)
	for _, field := range fields {
		columns = append(columns, field.Name())
	}
	for _, group := range file.RowGroups() {
		reader, buffer := group.Rows(), make([]parquet.Row, 64)
		for {
			count, err := reader.ReadRows(buffer)
			for _, row := range buffer[:count] {
				values := make([]any, len(columns))
				for _, value := range row {
					values[value.Column()] = tag(value, fields[value.Column()].Type())
				}
				rows = append(rows, values)
			}
			if err == io.EOF {
				break
			}
			client.Check(err)
		}
	}
	return object{"outcome": "rows", "columns": columns, "rows": rows}
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

func write(message object) object {
	input, nodes := open(message["input"]), parquet.Group{}
	for _, field := range flatFields(input) { // without the encodings of the input, which the writer does not support
		nodes[field.Name()] = parquet.Leaf(field.Type())
		if field.Optional() {
			nodes[field.Name()] = parquet.Optional(nodes[field.Name()])
		}
	}
	columns := map[string][]byte{}
	for path, key := range message["column_keys"].(object) {
		columns[path] = client.Raw(key)
	}
	out := client.Must(os.Create(message["path"].(string)))
	defer out.Close()
	writer := parquet.NewWriter(out, parquet.NewSchema("schema", nodes), parquet.WithEncryption(&parquet.EncryptionConfig{
		FooterKey: client.Raw(message["footer_key"]), ColumnKeys: columns,
		EncryptedFooter: message["options"].(object)["plaintext_footer"] == false,
	}))
	for _, group := range input.RowGroups() {
		client.Must(parquet.CopyRows(writer, group.Rows()))
		client.Check(writer.Flush())
	}
	client.Check(writer.Close())
	return object{"outcome": "written"}
}
