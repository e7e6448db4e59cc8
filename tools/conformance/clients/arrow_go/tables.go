package main

import (
	"context"
	"os"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

func columnsWithMetadata(reader *file.Reader) (object, error) {
	columns := []string{}
	for group := 0; group < reader.NumRowGroups(); group++ {
		metadata := reader.MetaData().RowGroup(group)
		for at := 0; at < metadata.NumColumns(); at++ {
			chunk, err := metadata.ColumnChunk(at)
			if err != nil {
				return nil, err
			}
			columns = append(columns, chunk.PathInSchema().String())
		}
	}
	return object{"outcome": "metadata", "columns": columns}, nil
}

func openIndexes(reader *file.Reader) error {
	indexes := reader.GetPageIndexReader()
	for group := 0; group < reader.NumRowGroups(); group++ {
		inGroup, err := indexes.RowGroup(group)
		if err != nil {
			return err
		}
		if inGroup == nil {
			continue
		}
		for at := 0; at < reader.MetaData().RowGroup(group).NumColumns(); at++ {
			if _, err := inGroup.GetColumnIndex(at); err != nil {
				return err
			}
			if _, err := inGroup.GetOffsetIndex(at); err != nil {
				return err
			}
		}
	}
	return nil
}

func encryption(message object) *parquet.FileEncryptionProperties {
	options := message["options"].(object)
	cipher := parquet.AesGcm
	if options["algorithm"] == "AES_GCM_CTR_V1" {
		cipher = parquet.AesCtr
	}
	made := []parquet.EncryptOption{parquet.WithAlg(cipher)}
	if options["plaintext_footer"] == true {
		made = append(made, parquet.WithPlaintextFooter())
	}
	if options["aad_prefix"] != nil {
		made = append(made, parquet.WithAadPrefix(raw(options["aad_prefix"])))
		if options["store_aad_prefix"] == false {
			made = append(made, parquet.DisableAadPrefixStorage())
		}
	}
	if options["footer_key_metadata"] != nil {
		made = append(made, parquet.WithFooterKeyMetadata(raw(options["footer_key_metadata"])))
	}
	columns, texts := parquet.ColumnPathToEncryptionPropsMap{}, options["column_key_metadata"].(object)
	for path, key := range message["column_keys"].(object) {
		given := []parquet.ColumnEncryptOption{parquet.WithKey(raw(key))}
		if texts[path] != nil {
			given = append(given, parquet.WithKeyMetadata(raw(texts[path])))
		}
		columns[path] = parquet.NewColumnEncryptionProperties(path, given...)
	}
	if len(columns) > 0 {
		made = append(made, parquet.WithEncryptedColumns(columns))
	}
	return parquet.NewFileEncryptionProperties(raw(message["footer_key"]), made...)
}

func write(message object) (result object, err error) {
	defer recovered(&err)
	options := message["options"].(object)
	plain, err := file.OpenParquetFile(message["input"].(string), false)
	if err != nil {
		return nil, err
	}
	reader, err := pqarrow.NewFileReader(plain, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return nil, err
	}
	table, err := reader.ReadTable(context.Background())
	if err != nil {
		return nil, err
	}
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
	out, err := os.Create(message["path"].(string))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	err = pqarrow.WriteTable(table, out, size, parquet.NewWriterProperties(made...), pqarrow.DefaultWriterProps())
	return object{"outcome": "written"}, err
}
