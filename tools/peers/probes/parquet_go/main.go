// parquet-go: reads the files that process.py asks for.
package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/parquet-go/parquet-go"
)

// keys finds keys by column.
type keys struct {
	footer  string
	columns map[string]string
}

func (k keys) FooterKey([]byte) ([]byte, error) { return hex.DecodeString(k.footer) }

func (k keys) ColumnKey(path []string, _ []byte) ([]byte, error) {
	if key, given := k.columns[strings.Join(path, ".")]; given {
		return hex.DecodeString(key)
	}
	return nil, parquet.ErrKeyNotFound
}

func main() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(answer(strings.Split(lines.Text(), "\t")))
	}
}

func answer(fields []string) (text string) {
	defer func() {
		if found := recover(); found != nil {
			text = strings.ReplaceAll(fmt.Sprint("panic\t", found), "\n", " ")
		}
	}()
	seen, err := read(fields)
	if err != nil {
		return strings.ReplaceAll(fmt.Sprint("error\t", err), "\n", " ")
	}
	return "ok\t" + seen
}

func read(fields []string) (string, error) {
	path, columns, footerKey, columnKeys, how := fields[0], fields[1], fields[2], fields[4], fields[5]
	options := []parquet.FileOption{}
	if footerKey != "" {
		found := keys{footerKey, map[string]string{}}
		for _, pair := range strings.Split(columnKeys, ",") {
			if name, key, given := strings.Cut(pair, "="); given {
				found.columns[name] = key
			}
		}
		options = append(options, parquet.WithDecryption(found))
	}
	input, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer input.Close()
	size, err := input.Stat()
	if err != nil {
		return "", err
	}
	file, err := parquet.OpenFile(input, size.Size(), options...)
	if err != nil {
		return "", err
	}
	if how == "count" {
		return fmt.Sprint(file.NumRows()), nil
	}
	width, values := 0, int64(0)
	for _, field := range file.Root().Columns() {
		if columns != "" && !strings.Contains(","+columns+",", ","+field.Name()+",") {
			continue
		}
		width++
		pages := field.Pages()
		values = 0
		for {
			page, err := pages.ReadPage()
			if err == io.EOF {
				break
			}
			if err != nil {
				return "", err
			}
			values += page.NumValues()
		}
		pages.Close()
	}
	return fmt.Sprint(values, " x ", width), nil
}
