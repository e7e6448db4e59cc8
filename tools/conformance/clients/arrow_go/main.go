// The client of arrow-go.
package main

import (
	"context"
	"os"

	"conformance/arrowrows"
	"conformance/client"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

type object = client.Object

var readFeatures = []string{"ctr", "encrypted-footer", "plaintext-footer", "column-keys", "aad-prefix",
	"aes-192", "aes-256", "v2", "unchecked-footer", "metadata", "page-indexes"}
var writeFeatures = []string{"ctr", "encrypted-footer", "plaintext-footer", "column-keys", "aad-prefix",
	"aes-192", "aes-256", "v2", "page-indexes", "bloom-filters", "nested-column-keys", "key-metadata"}

func main() {
	client.Serve(object{"name": "arrow-go", "version": client.Version("github.com/apache/arrow-go/v18"),
		"read":  object{"formats": []string{"parquet"}, "features": readFeatures},
		"write": object{"formats": []string{"parquet"}, "features": writeFeatures}}, read, write)
}

func read(message object) object {
	defer client.RefusePanics()
	properties := parquet.NewReaderProperties(memory.DefaultAllocator)
	properties.FileDecryptProps = decryption(message)
	input := client.Must(os.Open(message["path"].(string)))
	reader := client.Must(file.NewParquetReader(input, file.WithReadProps(properties)))
	defer reader.Close()
	if message["operation"] == "metadata" {
		return object{"outcome": "metadata", "columns": columnsWithMetadata(reader)}
	}
	openIndexes(reader)
	return arrowrows.Result(readTable(reader))
}

func readTable(reader *file.Reader) arrow.Table {
	found := client.Must(pqarrow.NewFileReader(reader, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator))
	return client.Must(found.ReadTable(context.Background()))
}

func columnsWithMetadata(reader *file.Reader) []string {
	columns := []string{}
	for group := range reader.NumRowGroups() {
		metadata := reader.MetaData().RowGroup(group)
		for at := range metadata.NumColumns() {
			columns = append(columns, client.Must(metadata.ColumnChunk(at)).PathInSchema().String())
		}
	}
	return columns
}

func openIndexes(reader *file.Reader) {
	for group := range reader.NumRowGroups() {
		indexes := client.Must(reader.GetPageIndexReader().RowGroup(group))
		if indexes == nil {
			continue
		}
		for at := range reader.MetaData().RowGroup(group).NumColumns() {
			client.Must(indexes.GetColumnIndex(at))
			client.Must(indexes.GetOffsetIndex(at))
		}
	}
}

func write(message object) object {
	defer client.RefusePanics()
	options := message["options"].(object)
	table := readTable(client.Must(file.OpenParquetFile(message["input"].(string), false)))
	made := []parquet.WriterProperty{parquet.WithEncryptionProperties(encryption(message)),
		parquet.WithPageIndexEnabled(options["write_page_index"] == true)}
	if options["data_page_version"] == 2.0 {
		made = append(made, parquet.WithDataPageVersion(parquet.DataPageV2))
	}
	for _, name := range options["bloom_filter_columns"].([]any) {
		made = append(made, parquet.WithBloomFilterEnabledFor(name.(string), true))
	}
	size := max(table.NumRows(), 1)
	if rows, given := options["row_group_size"].(float64); given {
		size = int64(rows)
	}
	out := client.Must(os.Create(message["path"].(string)))
	defer out.Close()
	client.Check(pqarrow.WriteTable(table, out, size, parquet.NewWriterProperties(made...), pqarrow.DefaultWriterProps()))
	return object{"outcome": "written"}
}
