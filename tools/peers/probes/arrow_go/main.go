// arrow-go: reads the files that process.py asks for.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

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
	path, columns, footerKey, prefix, columnKeys, how := fields[0], fields[1], fields[2], fields[3], fields[4], fields[5]
	properties := parquet.NewReaderProperties(memory.DefaultAllocator)
	if footerKey != "" {
		properties.FileDecryptProps = decryption(footerKey, prefix, columnKeys)
	}
	input, err := os.Open(path)
	if err != nil {
		return "", err
	}
	reader, err := file.NewParquetReader(input, file.WithReadProps(properties))
	if err != nil {
		return "", err
	}
	defer reader.Close()
	if how == "count" {
		return fmt.Sprint(reader.NumRows()), nil
	}
	rows, err := pqarrow.NewFileReader(reader, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return "", err
	}
	wanted, groups := []int{}, []int{}
	for at := range reader.MetaData().Schema.NumColumns() {
		name := reader.MetaData().Schema.Column(at).Name()
		if columns == "" || strings.Contains(","+columns+",", ","+name+",") {
			wanted = append(wanted, at)
		}
	}
	for group := range reader.NumRowGroups() {
		groups = append(groups, group)
	}
	table, err := rows.ReadRowGroups(context.Background(), wanted, groups)
	if err != nil {
		return "", err
	}
	return fmt.Sprint(table.NumRows(), " x ", table.NumCols()), nil
}

func decryption(footerKey, prefix, columnKeys string) *parquet.FileDecryptionProperties {
	columns := parquet.ColumnPathToDecryptionPropsMap{}
	for _, pair := range strings.Split(columnKeys, ",") {
		if name, key, found := strings.Cut(pair, "="); found {
			columns[name] = parquet.NewColumnDecryptionProperties(name, parquet.WithDecryptKey(decode(key)))
		}
	}
	options := []parquet.FileDecryptionOption{parquet.WithFooterKey(decode(footerKey)), parquet.WithColumnKeys(columns)}
	if text, given := strings.CutPrefix(prefix, "="); given {
		options = append(options, parquet.WithDecryptAadPrefix(decode(text)))
	}
	return parquet.NewFileDecryptionProperties(options...)
}

func decode(text string) string {
	content, err := hex.DecodeString(text)
	if err != nil {
		panic(err)
	}
	return string(content)
}
