// The client of parquet-go: flat tables of a few types, which is enough to see whether anybody reads it.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"

	"github.com/parquet-go/parquet-go"
)

type object = map[string]any

var features = []string{"encrypted-footer", "plaintext-footer", "column-keys", "aes-192", "aes-256"}

func main() {
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var message object
		if json.Unmarshal(line, &message) != nil || message["type"] == "stop" {
			return
		}
		encoded, _ := json.Marshal(answer(message))
		os.Stdout.Write(append(encoded, '\n'))
	}
}

func answer(message object) object {
	if message["type"] == "start" {
		abilities := object{"formats": []string{"parquet"}, "features": features}
		return object{"type": "started", "protocol": 1, "name": "parquet-go", "version": version(),
			"read": abilities, "write": abilities}
	}
	operation := read
	if message["type"] == "write" {
		operation = write
	}
	result, err := operation(message)
	if errors.Is(err, errors.ErrUnsupported) {
		result = object{"outcome": "unsupported", "message": err.Error()}
	} else if err != nil {
		result = object{"outcome": "error", "message": err.Error()}
	}
	result["type"], result["id"] = "result", message["id"]
	return result
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/parquet-go/parquet-go" {
			return module.Version
		}
	}
	return "unknown"
}

func raw(value any) []byte {
	text, _ := value.(string)
	data, _ := hex.DecodeString(text)
	return data
}

// keys finds keys by column, whatever key metadata says.
type keys struct{ message object }

func (k keys) FooterKey([]byte) ([]byte, error) { return raw(k.message["footer_key"]), nil }

func (k keys) ColumnKey(path []string, _ []byte) ([]byte, error) {
	name := path[0]
	for _, part := range path[1:] {
		name += "." + part
	}
	key, given := k.message["column_keys"].(object)[name]
	if !given {
		return nil, fmt.Errorf("no key for %s: %w", name, parquet.ErrKeyNotFound)
	}
	return raw(key), nil
}

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
