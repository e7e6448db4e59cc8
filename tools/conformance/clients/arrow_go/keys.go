// Keys of a message, as arrow-go takes them.
package main

import (
	"conformance/client"

	"github.com/apache/arrow-go/v18/parquet"
)

func raw(value any) string { return string(client.Raw(value)) }

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
