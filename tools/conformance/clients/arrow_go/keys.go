// Keys of a message, as arrow-go takes them; its options ignore empty values.
package main

import (
	"conformance/client"

	"github.com/apache/arrow-go/v18/parquet"
)

func raw(value any) string { return string(client.Raw(value)) }

func decryption(message object) *parquet.FileDecryptionProperties {
	columns := parquet.ColumnPathToDecryptionPropsMap{}
	for path, key := range message["column_keys"].(object) {
		columns[path] = parquet.NewColumnDecryptionProperties(path, parquet.WithDecryptKey(raw(key)))
	}
	made := []parquet.FileDecryptionOption{parquet.WithFooterKey(raw(message["footer_key"])),
		parquet.WithColumnKeys(columns), parquet.WithDecryptAadPrefix(raw(message["aad_prefix"]))}
	if message["check_footer_integrity"] == false {
		made = append(made, parquet.DisableFooterSignatureVerification())
	}
	return parquet.NewFileDecryptionProperties(made...)
}

func encryption(message object) *parquet.FileEncryptionProperties {
	options := message["options"].(object)
	metadata := options["column_key_metadata"].(object)
	columns := parquet.ColumnPathToEncryptionPropsMap{}
	for path, key := range message["column_keys"].(object) {
		columns[path] = parquet.NewColumnEncryptionProperties(path,
			parquet.WithKey(raw(key)), parquet.WithKeyMetadata(raw(metadata[path])))
	}
	made := []parquet.EncryptOption{parquet.WithFooterKeyMetadata(raw(options["footer_key_metadata"])),
		parquet.WithAadPrefix(raw(options["aad_prefix"])), parquet.WithEncryptedColumns(columns)}
	if options["algorithm"] == "AES_GCM_CTR_V1" {
		made = append(made, parquet.WithAlg(parquet.AesCtr))
	}
	if options["plaintext_footer"] == true {
		made = append(made, parquet.WithPlaintextFooter())
	}
	if options["store_aad_prefix"] == false {
		made = append(made, parquet.DisableAadPrefixStorage())
	}
	return parquet.NewFileEncryptionProperties(raw(message["footer_key"]), made...)
}
