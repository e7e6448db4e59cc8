// The client of parquet-go: flat tables of a few types, which is enough to see whether anybody reads it.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
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
