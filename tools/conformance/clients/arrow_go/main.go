// The client of arrow-go.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

type object = map[string]any

var readFeatures = []string{"ctr", "encrypted-footer", "plaintext-footer", "column-keys", "aad-prefix",
	"aes-192", "aes-256", "v2", "unchecked-footer", "metadata", "page-indexes"}
var writeFeatures = []string{"ctr", "encrypted-footer", "plaintext-footer", "column-keys", "aad-prefix",
	"aes-192", "aes-256", "v2", "page-indexes", "bloom-filters", "nested-column-keys", "key-metadata"}

func main() {
	lines := bufio.NewReader(os.Stdin)
	answers := os.Stdout
	os.Stdout = os.Stderr // what libraries print must not stand among the answers
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
		answers.Write(append(encoded, '\n'))
	}
}

func answer(message object) object {
	if message["type"] == "start" {
		return object{"type": "started", "protocol": 1, "name": "arrow-go", "version": version(),
			"read":  object{"formats": []string{"parquet"}, "features": readFeatures},
			"write": object{"formats": []string{"parquet"}, "features": writeFeatures}}
	}
	operation := read
	if message["type"] == "write" {
		operation = write
	}
	result, err := operation(message)
	if err != nil {
		kind := map[bool]string{true: "unsupported", false: "error"}[errors.Is(err, errors.ErrUnsupported)]
		result = object{"outcome": kind, "message": err.Error()}
	}
	result["type"], result["id"] = "result", message["id"]
	return result
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	at := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == "github.com/apache/arrow-go/v18" })
	return info.Deps[at].Version
}

func raw(value any) string {
	text, _ := value.(string)
	data, _ := hex.DecodeString(text)
	return string(data)
}

func decryption(message object) *parquet.FileDecryptionProperties {
	var options []parquet.FileDecryptionOption
	if message["footer_key"] != nil {
		options = append(options, parquet.WithFooterKey(raw(message["footer_key"])))
	}
	keys := parquet.ColumnPathToDecryptionPropsMap{}
	for path, key := range message["column_keys"].(object) {
		keys[path] = parquet.NewColumnDecryptionProperties(path, parquet.WithDecryptKey(raw(key)))
	}
	if len(keys) > 0 {
		options = append(options, parquet.WithColumnKeys(keys))
	}
	if message["aad_prefix"] != nil {
		options = append(options, parquet.WithDecryptAadPrefix(raw(message["aad_prefix"])))
	}
	if message["check_footer_integrity"] == false {
		options = append(options, parquet.DisableFooterSignatureVerification())
	}
	return parquet.NewFileDecryptionProperties(options...)
}

func read(message object) (result object, err error) {
	defer recovered(&err)
	properties := parquet.NewReaderProperties(memory.DefaultAllocator)
	properties.FileDecryptProps = decryption(message)
	input, err := os.Open(message["path"].(string))
	if err != nil {
		return nil, err
	}
	reader, err := file.NewParquetReader(input, file.WithReadProps(properties))
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	if message["operation"] == "metadata" {
		return columnsWithMetadata(reader)
	}
	if err := openIndexes(reader); err != nil {
		return nil, err
	}
	arrow, err := pqarrow.NewFileReader(reader, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return nil, err
	}
	table, err := arrow.ReadTable(context.Background())
	if err != nil {
		return nil, err
	}
	columns := []string{}
	for _, field := range table.Schema().Fields() {
		columns = append(columns, field.Name)
	}
	rows := []any{}
	batches := array.NewTableReader(table, table.NumRows())
	for batches.Next() {
		if rows, err = appendRows(rows, batches.RecordBatch()); err != nil {
			return nil, err
		}
	}
	return object{"outcome": "rows", "columns": columns, "rows": rows}, nil
}

// recovered turns a panic into an error, as which arrow-go reports failed tags; runtime errors stay panics.
func recovered(err *error) {
	if found := recover(); found != nil {
		if _, fatal := found.(interface{ RuntimeError() }); fatal {
			panic(found)
		}
		*err = fmt.Errorf("panic: %v", found)
	}
}
