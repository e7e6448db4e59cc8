"""Definitions of `thrift/parquet.thrift`, which `tools/idl_table.py` writes.

`idl_definitions` describes them.
"""

from __future__ import annotations

# fmt: off
CRC = 2087126604

STRUCTS: dict[str, tuple[bool, tuple[tuple[int, int, str, bool, str, int], ...]]] = {
    "SizeStatistics": (False, (
        (1, 6, "unencoded_byte_array_data_bytes", False, "", 0),
        (2, 9, "repetition_level_histogram", False, "", 6),
        (3, 9, "definition_level_histogram", False, "", 6),
    )),
    "BoundingBox": (False, (
        (1, 7, "xmin", True, "", 0),
        (2, 7, "xmax", True, "", 0),
        (3, 7, "ymin", True, "", 0),
        (4, 7, "ymax", True, "", 0),
        (5, 7, "zmin", False, "", 0),
        (6, 7, "zmax", False, "", 0),
        (7, 7, "mmin", False, "", 0),
        (8, 7, "mmax", False, "", 0),
    )),
    "GeospatialStatistics": (False, (
        (1, 12, "bbox", False, "BoundingBox", 0),
        (2, 9, "geospatial_types", False, "", 5),
    )),
    "Statistics": (False, (
        (1, 8, "max", False, "", 0),
        (2, 8, "min", False, "", 0),
        (3, 6, "null_count", False, "", 0),
        (4, 6, "distinct_count", False, "", 0),
        (5, 8, "max_value", False, "", 0),
        (6, 8, "min_value", False, "", 0),
        (7, 1, "is_max_value_exact", False, "", 0),
        (8, 1, "is_min_value_exact", False, "", 0),
        (9, 6, "nan_count", False, "", 0),
    )),
    "StringType": (False, (
    )),
    "UUIDType": (False, (
    )),
    "MapType": (False, (
    )),
    "ListType": (False, (
    )),
    "EnumType": (False, (
    )),
    "DateType": (False, (
    )),
    "Float16Type": (False, (
    )),
    "NullType": (False, (
    )),
    "DecimalType": (False, (
        (1, 5, "scale", True, "", 0),
        (2, 5, "precision", True, "", 0),
    )),
    "MilliSeconds": (False, (
    )),
    "MicroSeconds": (False, (
    )),
    "NanoSeconds": (False, (
    )),
    "TimestampType": (False, (
        (1, 1, "isAdjustedToUTC", True, "", 0),
        (2, 12, "unit", True, "TimeUnit", 0),
    )),
    "TimeType": (False, (
        (1, 1, "isAdjustedToUTC", True, "", 0),
        (2, 12, "unit", True, "TimeUnit", 0),
    )),
    "IntType": (False, (
        (1, 3, "bitWidth", True, "", 0),
        (2, 1, "isSigned", True, "", 0),
    )),
    "JsonType": (False, (
    )),
    "BsonType": (False, (
    )),
    "VariantType": (False, (
        (1, 3, "specification_version", False, "", 0),
    )),
    "GeometryType": (False, (
        (1, 8, "crs", False, "", 0),
    )),
    "GeographyType": (False, (
        (1, 8, "crs", False, "", 0),
        (2, 5, "algorithm", False, "", 0),
    )),
    "FileType": (False, (
    )),
    "SchemaElement": (False, (
        (1, 5, "type", False, "", 0),
        (2, 5, "type_length", False, "", 0),
        (3, 5, "repetition_type", False, "", 0),
        (4, 8, "name", True, "", 0),
        (5, 5, "num_children", False, "", 0),
        (6, 5, "converted_type", False, "", 0),
        (7, 5, "scale", False, "", 0),
        (8, 5, "precision", False, "", 0),
        (9, 5, "field_id", False, "", 0),
        (10, 12, "logicalType", False, "LogicalType", 0),
    )),
    "DataPageHeader": (False, (
        (1, 5, "num_values", True, "", 0),
        (2, 5, "encoding", True, "", 0),
        (3, 5, "definition_level_encoding", True, "", 0),
        (4, 5, "repetition_level_encoding", True, "", 0),
        (5, 12, "statistics", False, "Statistics", 0),
    )),
    "IndexPageHeader": (False, (
    )),
    "DictionaryPageHeader": (False, (
        (1, 5, "num_values", True, "", 0),
        (2, 5, "encoding", True, "", 0),
        (3, 1, "is_sorted", False, "", 0),
    )),
    "DataPageHeaderV2": (False, (
        (1, 5, "num_values", True, "", 0),
        (2, 5, "num_nulls", True, "", 0),
        (3, 5, "num_rows", True, "", 0),
        (4, 5, "encoding", True, "", 0),
        (5, 5, "definition_levels_byte_length", True, "", 0),
        (6, 5, "repetition_levels_byte_length", True, "", 0),
        (7, 1, "is_compressed", False, "", 0),
        (8, 12, "statistics", False, "Statistics", 0),
    )),
    "SplitBlockAlgorithm": (False, (
    )),
    "XxHash": (False, (
    )),
    "Uncompressed": (False, (
    )),
    "BloomFilterHeader": (False, (
        (1, 5, "numBytes", True, "", 0),
        (2, 12, "algorithm", True, "BloomFilterAlgorithm", 0),
        (3, 12, "hash", True, "BloomFilterHash", 0),
        (4, 12, "compression", True, "BloomFilterCompression", 0),
    )),
    "PageHeader": (False, (
        (1, 5, "type", True, "", 0),
        (2, 5, "uncompressed_page_size", True, "", 0),
        (3, 5, "compressed_page_size", True, "", 0),
        (4, 5, "crc", False, "", 0),
        (5, 12, "data_page_header", False, "DataPageHeader", 0),
        (6, 12, "index_page_header", False, "IndexPageHeader", 0),
        (7, 12, "dictionary_page_header", False, "DictionaryPageHeader", 0),
        (8, 12, "data_page_header_v2", False, "DataPageHeaderV2", 0),
    )),
    "KeyValue": (False, (
        (1, 8, "key", True, "", 0),
        (2, 8, "value", False, "", 0),
    )),
    "SortingColumn": (False, (
        (1, 5, "column_idx", True, "", 0),
        (2, 1, "descending", True, "", 0),
        (3, 1, "nulls_first", True, "", 0),
    )),
    "PageEncodingStats": (False, (
        (1, 5, "page_type", True, "", 0),
        (2, 5, "encoding", True, "", 0),
        (3, 5, "count", True, "", 0),
    )),
    "ColumnMetaData": (False, (
        (1, 5, "type", True, "", 0),
        (2, 9, "encodings", True, "", 5),
        (3, 9, "path_in_schema", True, "", 8),
        (4, 5, "codec", True, "", 0),
        (5, 6, "num_values", True, "", 0),
        (6, 6, "total_uncompressed_size", True, "", 0),
        (7, 6, "total_compressed_size", True, "", 0),
        (8, 9, "key_value_metadata", False, "KeyValue", 12),
        (9, 6, "data_page_offset", True, "", 0),
        (10, 6, "index_page_offset", False, "", 0),
        (11, 6, "dictionary_page_offset", False, "", 0),
        (12, 12, "statistics", False, "Statistics", 0),
        (13, 9, "encoding_stats", False, "PageEncodingStats", 12),
        (14, 6, "bloom_filter_offset", False, "", 0),
        (15, 5, "bloom_filter_length", False, "", 0),
        (16, 12, "size_statistics", False, "SizeStatistics", 0),
        (17, 12, "geospatial_statistics", False, "GeospatialStatistics", 0),
    )),
    "EncryptionWithFooterKey": (False, (
    )),
    "EncryptionWithColumnKey": (False, (
        (1, 9, "path_in_schema", True, "", 8),
        (2, 8, "key_metadata", False, "", 0),
    )),
    "ColumnChunk": (False, (
        (1, 8, "file_path", False, "", 0),
        (2, 6, "file_offset", True, "", 0),
        (3, 12, "meta_data", False, "ColumnMetaData", 0),
        (4, 6, "offset_index_offset", False, "", 0),
        (5, 5, "offset_index_length", False, "", 0),
        (6, 6, "column_index_offset", False, "", 0),
        (7, 5, "column_index_length", False, "", 0),
        (8, 12, "crypto_metadata", False, "ColumnCryptoMetaData", 0),
        (9, 8, "encrypted_column_metadata", False, "", 0),
    )),
    "RowGroup": (False, (
        (1, 9, "columns", True, "ColumnChunk", 12),
        (2, 6, "total_byte_size", True, "", 0),
        (3, 6, "num_rows", True, "", 0),
        (4, 9, "sorting_columns", False, "SortingColumn", 12),
        (5, 6, "file_offset", False, "", 0),
        (6, 6, "total_compressed_size", False, "", 0),
        (7, 4, "ordinal", False, "", 0),
    )),
    "TypeDefinedOrder": (False, (
    )),
    "IEEE754TotalOrder": (False, (
    )),
    "Int96TimestampOrder": (False, (
    )),
    "PageLocation": (False, (
        (1, 6, "offset", True, "", 0),
        (2, 5, "compressed_page_size", True, "", 0),
        (3, 6, "first_row_index", True, "", 0),
    )),
    "OffsetIndex": (False, (
        (1, 9, "page_locations", True, "PageLocation", 12),
        (2, 9, "unencoded_byte_array_data_bytes", False, "", 6),
    )),
    "ColumnIndex": (False, (
        (1, 9, "null_pages", True, "", 1),
        (2, 9, "min_values", True, "", 8),
        (3, 9, "max_values", True, "", 8),
        (4, 5, "boundary_order", True, "", 0),
        (5, 9, "null_counts", False, "", 6),
        (6, 9, "repetition_level_histograms", False, "", 6),
        (7, 9, "definition_level_histograms", False, "", 6),
        (8, 9, "nan_counts", False, "", 6),
    )),
    "AesGcmV1": (False, (
        (1, 8, "aad_prefix", False, "", 0),
        (2, 8, "aad_file_unique", False, "", 0),
        (3, 1, "supply_aad_prefix", False, "", 0),
    )),
    "AesGcmCtrV1": (False, (
        (1, 8, "aad_prefix", False, "", 0),
        (2, 8, "aad_file_unique", False, "", 0),
        (3, 1, "supply_aad_prefix", False, "", 0),
    )),
    "FileMetaData": (False, (
        (1, 5, "version", True, "", 0),
        (2, 9, "schema", True, "SchemaElement", 12),
        (3, 6, "num_rows", True, "", 0),
        (4, 9, "row_groups", True, "RowGroup", 12),
        (5, 9, "key_value_metadata", False, "KeyValue", 12),
        (6, 8, "created_by", False, "", 0),
        (7, 9, "column_orders", False, "ColumnOrder", 12),
        (8, 12, "encryption_algorithm", False, "EncryptionAlgorithm", 0),
        (9, 8, "footer_signing_key_metadata", False, "", 0),
    )),
    "FileCryptoMetaData": (False, (
        (1, 12, "encryption_algorithm", True, "EncryptionAlgorithm", 0),
        (2, 8, "key_metadata", False, "", 0),
    )),
    "TimeUnit": (True, (
        (1, 12, "MILLIS", False, "MilliSeconds", 0),
        (2, 12, "MICROS", False, "MicroSeconds", 0),
        (3, 12, "NANOS", False, "NanoSeconds", 0),
    )),
    "LogicalType": (True, (
        (1, 12, "STRING", False, "StringType", 0),
        (2, 12, "MAP", False, "MapType", 0),
        (3, 12, "LIST", False, "ListType", 0),
        (4, 12, "ENUM", False, "EnumType", 0),
        (5, 12, "DECIMAL", False, "DecimalType", 0),
        (6, 12, "DATE", False, "DateType", 0),
        (7, 12, "TIME", False, "TimeType", 0),
        (8, 12, "TIMESTAMP", False, "TimestampType", 0),
        (10, 12, "INTEGER", False, "IntType", 0),
        (11, 12, "UNKNOWN", False, "NullType", 0),
        (12, 12, "JSON", False, "JsonType", 0),
        (13, 12, "BSON", False, "BsonType", 0),
        (14, 12, "UUID", False, "UUIDType", 0),
        (15, 12, "FLOAT16", False, "Float16Type", 0),
        (16, 12, "VARIANT", False, "VariantType", 0),
        (17, 12, "GEOMETRY", False, "GeometryType", 0),
        (18, 12, "GEOGRAPHY", False, "GeographyType", 0),
        (19, 12, "FILE", False, "FileType", 0),
    )),
    "BloomFilterAlgorithm": (True, (
        (1, 12, "BLOCK", False, "SplitBlockAlgorithm", 0),
    )),
    "BloomFilterHash": (True, (
        (1, 12, "XXHASH", False, "XxHash", 0),
    )),
    "BloomFilterCompression": (True, (
        (1, 12, "UNCOMPRESSED", False, "Uncompressed", 0),
    )),
    "ColumnCryptoMetaData": (True, (
        (1, 12, "ENCRYPTION_WITH_FOOTER_KEY", False, "EncryptionWithFooterKey", 0),
        (2, 12, "ENCRYPTION_WITH_COLUMN_KEY", False, "EncryptionWithColumnKey", 0),
    )),
    "ColumnOrder": (True, (
        (1, 12, "TYPE_ORDER", False, "TypeDefinedOrder", 0),
        (2, 12, "IEEE_754_TOTAL_ORDER", False, "IEEE754TotalOrder", 0),
        (3, 12, "INT96_TIMESTAMP_ORDER", False, "Int96TimestampOrder", 0),
    )),
    "EncryptionAlgorithm": (True, (
        (1, 12, "AES_GCM_V1", False, "AesGcmV1", 0),
        (2, 12, "AES_GCM_CTR_V1", False, "AesGcmCtrV1", 0),
    )),
}

ENUMS: dict[str, dict[int, str]] = {
    "Type": {
        0: "BOOLEAN",
        1: "INT32",
        2: "INT64",
        3: "INT96",
        4: "FLOAT",
        5: "DOUBLE",
        6: "BYTE_ARRAY",
        7: "FIXED_LEN_BYTE_ARRAY",
    },
    "ConvertedType": {
        0: "UTF8",
        1: "MAP",
        2: "MAP_KEY_VALUE",
        3: "LIST",
        4: "ENUM",
        5: "DECIMAL",
        6: "DATE",
        7: "TIME_MILLIS",
        8: "TIME_MICROS",
        9: "TIMESTAMP_MILLIS",
        10: "TIMESTAMP_MICROS",
        11: "UINT_8",
        12: "UINT_16",
        13: "UINT_32",
        14: "UINT_64",
        15: "INT_8",
        16: "INT_16",
        17: "INT_32",
        18: "INT_64",
        19: "JSON",
        20: "BSON",
        21: "INTERVAL",
    },
    "FieldRepetitionType": {
        0: "REQUIRED",
        1: "OPTIONAL",
        2: "REPEATED",
    },
    "EdgeInterpolationAlgorithm": {
        0: "SPHERICAL",
        1: "VINCENTY",
        2: "THOMAS",
        3: "ANDOYER",
        4: "KARNEY",
    },
    "Encoding": {
        0: "PLAIN",
        2: "PLAIN_DICTIONARY",
        3: "RLE",
        4: "BIT_PACKED",
        5: "DELTA_BINARY_PACKED",
        6: "DELTA_LENGTH_BYTE_ARRAY",
        7: "DELTA_BYTE_ARRAY",
        8: "RLE_DICTIONARY",
        9: "BYTE_STREAM_SPLIT",
        10: "ALP",
    },
    "CompressionCodec": {
        0: "UNCOMPRESSED",
        1: "SNAPPY",
        2: "GZIP",
        3: "LZO",
        4: "BROTLI",
        5: "LZ4",
        6: "ZSTD",
        7: "LZ4_RAW",
    },
    "PageType": {
        0: "DATA_PAGE",
        1: "INDEX_PAGE",
        2: "DICTIONARY_PAGE",
        3: "DATA_PAGE_V2",
    },
    "BoundaryOrder": {
        0: "UNORDERED",
        1: "ASCENDING",
        2: "DESCENDING",
    },
}
