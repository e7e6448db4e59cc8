// SPDX-License-Identifier: Apache-2.0
//
// Thrift definitions of the metadata in an Apache Parquet file: footer, page
// headers, page index, Bloom filter header and encryption structures.
//
// Written from the field ids, names, types and enum values of the Apache
// Parquet format (https://github.com/apache/parquet-format), which have to
// agree with it exactly; the comments are our own. They are reminders, not the
// specification. "PME n.n" points to a section of the Parquet Modular
// Encryption document (Encryption.md) of that project.

// ---------------------------------------------------------------- schema

// Physical types: what the encodings see.
enum Type {
  BOOLEAN = 0
  INT32 = 1
  INT64 = 2
  INT96 = 3                 // legacy timestamps; do not write
  FLOAT = 4
  DOUBLE = 5
  BYTE_ARRAY = 6
  FIXED_LEN_BYTE_ARRAY = 7  // width in SchemaElement.type_length
}

// Old annotations, frozen; LogicalType took over.
enum ConvertedType {
  UTF8 = 0
  MAP = 1
  MAP_KEY_VALUE = 2
  LIST = 3
  ENUM = 4
  DECIMAL = 5            // needs SchemaElement.scale and .precision
  DATE = 6               // INT32, day number, 0 = 1970-01-01
  TIME_MILLIS = 7        // INT32, time of day
  TIME_MICROS = 8        // INT64, time of day
  TIMESTAMP_MILLIS = 9   // INT64, from 1970-01-01T00:00
  TIMESTAMP_MICROS = 10  // INT64, from 1970-01-01T00:00
  UINT_8 = 11            // 8 to 32 bits live in INT32, 64 bits in INT64
  UINT_16 = 12
  UINT_32 = 13
  UINT_64 = 14
  INT_8 = 15
  INT_16 = 16
  INT_32 = 17
  INT_64 = 18
  JSON = 19
  BSON = 20
  INTERVAL = 21          // 12 bytes: months, days, millis, each a LE uint32
}

// How often a node occurs under its parent.
enum FieldRepetitionType {
  REQUIRED = 0  // once
  OPTIONAL = 1  // at most once
  REPEATED = 2  // any number of times
}

// ---------------------------------------------------------------- statistics

// Helps a reader to guess decoded size; histograms are indexed by level.
struct SizeStatistics {
  1: optional i64 unencoded_byte_array_data_bytes   // BYTE_ARRAY only, payload without length prefixes
  2: optional list<i64> repetition_level_histogram  // max level + 1 counts
  3: optional list<i64> definition_level_histogram  // max level + 1 counts
}

// Extent of geospatial values; x alone may wrap round (xmin > xmax).
struct BoundingBox {
  1: required double xmin
  2: required double xmax
  3: required double ymin
  4: required double ymax
  5: optional double zmin
  6: optional double zmax
  7: optional double mmin
  8: optional double mmax
}

// GEOMETRY and GEOGRAPHY columns get these in place of min/max.
struct GeospatialStatistics {
  1: optional BoundingBox bbox
  2: optional list<i32> geospatial_types  // distinct ISO WKB codes; empty = unknown
}

// Of a column chunk or of a page. Bounds are PLAIN without a length prefix.
struct Statistics {
  1: optional binary max               // old, signed order only; see max_value
  2: optional binary min               // old, signed order only; see min_value
  3: optional i64 null_count           // absent is not zero
  4: optional i64 distinct_count
  5: optional binary max_value         // upper bound under the ColumnOrder
  6: optional binary min_value         // lower bound under the ColumnOrder
  7: optional bool is_max_value_exact  // true: the bound occurs in the data
  8: optional bool is_min_value_exact  // true: the bound occurs in the data
  9: optional i64 nan_count            // floating point only; absent is not zero
}

// ---------------------------------------------------------------- logical types

struct StringType {}   // BYTE_ARRAY, UTF-8
struct UUIDType {}     // FIXED_LEN_BYTE_ARRAY(16)
struct MapType {}      // group
struct ListType {}     // group
struct EnumType {}     // BYTE_ARRAY, UTF-8
struct DateType {}     // INT32
struct Float16Type {}  // FIXED_LEN_BYTE_ARRAY(2)
struct NullType {}     // any physical type; every value is null

// Needs 0 <= scale <= precision and precision >= 1.
struct DecimalType {
  1: required i32 scale
  2: required i32 precision
}

struct MilliSeconds {}
struct MicroSeconds {}
struct NanoSeconds {}

union TimeUnit {
  1: MilliSeconds MILLIS
  2: MicroSeconds MICROS
  3: NanoSeconds NANOS
}

// INT64.
struct TimestampType {
  1: required bool isAdjustedToUTC
  2: required TimeUnit unit
}

// INT32 for MILLIS, INT64 for the finer units.
struct TimeType {
  1: required bool isAdjustedToUTC
  2: required TimeUnit unit
}

// INT32 up to 32 bits, INT64 for 64.
struct IntType {
  1: required i8 bitWidth  // one of 8, 16, 32, 64
  2: required bool isSigned
}

struct JsonType {}  // BYTE_ARRAY
struct BsonType {}  // BYTE_ARRAY

// Group.
struct VariantType {
  1: optional i8 specification_version  // of the Variant spec that the writer followed
}

// What an edge between two points on the globe means.
enum EdgeInterpolationAlgorithm {
  SPHERICAL = 0
  VINCENTY = 1
  THOMAS = 2
  ANDOYER = 3
  KARNEY = 4
}

// BYTE_ARRAY holding WKB, straight edges.
struct GeometryType {
  1: optional string crs  // absent = OGC:CRS84
}

// BYTE_ARRAY holding WKB, curved edges.
struct GeographyType {
  1: optional string crs                            // absent = OGC:CRS84
  2: optional EdgeInterpolationAlgorithm algorithm  // absent = SPHERICAL
}

// Group that points to bytes: inline, in this file or in another one.
struct FileType {}

// Where a ConvertedType twin exists, writers set both. Id 9 is kept for intervals.
union LogicalType {
  1: StringType STRING         // twin: UTF8
  2: MapType MAP               // twin: MAP
  3: ListType LIST             // twin: LIST
  4: EnumType ENUM             // twin: ENUM
  5: DecimalType DECIMAL       // twin: DECIMAL, plus scale and precision
  6: DateType DATE             // twin: DATE
  7: TimeType TIME             // twin: TIME_MILLIS or TIME_MICROS; NANOS has none
  8: TimestampType TIMESTAMP   // twin: TIMESTAMP_MILLIS or TIMESTAMP_MICROS; NANOS has none
  10: IntType INTEGER          // twin: INT_n or UINT_n
  11: NullType UNKNOWN
  12: JsonType JSON            // twin: JSON
  13: BsonType BSON            // twin: BSON
  14: UUIDType UUID
  15: Float16Type FLOAT16
  16: VariantType VARIANT
  17: GeometryType GEOMETRY
  18: GeographyType GEOGRAPHY
  19: FileType FILE
}

// One node of the schema tree; the tree is stored flat, parents before children.
struct SchemaElement {
  1: optional Type type                            // leaves only
  2: optional i32 type_length                      // width of FIXED_LEN_BYTE_ARRAY
  3: optional FieldRepetitionType repetition_type  // everywhere but at the root
  4: required string name
  5: optional i32 num_children                     // groups only
  6: optional ConvertedType converted_type         // old; see logicalType
  7: optional i32 scale                            // old; see DecimalType
  8: optional i32 precision                        // old; see DecimalType
  9: optional i32 field_id                         // id in the writer's own schema
  10: optional LogicalType logicalType
}

// ---------------------------------------------------------------- encodings, codecs

// Of values and of levels. The number 1 was retired unused.
enum Encoding {
  PLAIN = 0
  PLAIN_DICTIONARY = 2         // old; now PLAIN (dictionary) and RLE_DICTIONARY (data)
  RLE = 3                      // hybrid of runs and bit packing; levels, booleans
  BIT_PACKED = 4               // old; levels only
  DELTA_BINARY_PACKED = 5      // INT32, INT64
  DELTA_LENGTH_BYTE_ARRAY = 6  // all lengths, then all bytes
  DELTA_BYTE_ARRAY = 7         // shared prefix lengths, then suffixes
  RLE_DICTIONARY = 8           // indices into the dictionary page
  BYTE_STREAM_SPLIT = 9        // k-th bytes of all values side by side
  ALP = 10                     // FLOAT, DOUBLE; in preview since 2026
}

enum CompressionCodec {
  UNCOMPRESSED = 0
  SNAPPY = 1
  GZIP = 2
  LZO = 3
  BROTLI = 4
  LZ4 = 5      // old, with an undocumented framing; see LZ4_RAW
  ZSTD = 6
  LZ4_RAW = 7  // the bare LZ4 block format
}

enum PageType {
  DATA_PAGE = 0
  INDEX_PAGE = 1
  DICTIONARY_PAGE = 2
  DATA_PAGE_V2 = 3
}

// Whether the page bounds in a ColumnIndex are sorted, and how.
enum BoundaryOrder {
  UNORDERED = 0
  ASCENDING = 1
  DESCENDING = 2
}

// ---------------------------------------------------------------- pages

// V1: levels and values are compressed as one block.
struct DataPageHeader {
  1: required i32 num_values  // nulls count too
  2: required Encoding encoding
  3: required Encoding definition_level_encoding
  4: required Encoding repetition_level_encoding
  5: optional Statistics statistics
}

// No fields were ever defined.
struct IndexPageHeader {}

// At most one such page per column chunk, ahead of the data pages.
struct DictionaryPageHeader {
  1: required i32 num_values  // entries
  2: required Encoding encoding
  3: optional bool is_sorted  // true: entries ascend
}

// V2: uncompressed RLE levels, then the values; a page holds whole rows.
struct DataPageHeaderV2 {
  1: required i32 num_values  // nulls count too
  2: required i32 num_nulls
  3: required i32 num_rows
  4: required Encoding encoding
  5: required i32 definition_levels_byte_length  // stored second
  6: required i32 repetition_levels_byte_length  // stored first
  7: optional bool is_compressed = true          // concerns the values only
  8: optional Statistics statistics
}

// ---------------------------------------------------------------- Bloom filter

struct SplitBlockAlgorithm {}

union BloomFilterAlgorithm {
  1: SplitBlockAlgorithm BLOCK
}

struct XxHash {}  // XXH64, seed 0

// Hashes the PLAIN form of a value.
union BloomFilterHash {
  1: XxHash XXHASH
}

struct Uncompressed {}

union BloomFilterCompression {
  1: Uncompressed UNCOMPRESSED
}

// The bitset comes straight after it; encrypted, they are two modules (PME 4.4.2).
struct BloomFilterHeader {
  1: required i32 numBytes  // of the bitset alone
  2: required BloomFilterAlgorithm algorithm
  3: required BloomFilterHash hash
  4: required BloomFilterCompression compression
}

// ---------------------------------------------------------------- page header

// Exactly one of fields 5 to 8 is set, as type says.
struct PageHeader {
  1: required PageType type
  2: required i32 uncompressed_page_size  // header not counted
  3: required i32 compressed_page_size    // as stored, so encryption included; header not counted
  4: optional i32 crc                     // CRC-32 of the stored bytes after the header
  5: optional DataPageHeader data_page_header
  6: optional IndexPageHeader index_page_header
  7: optional DictionaryPageHeader dictionary_page_header
  8: optional DataPageHeaderV2 data_page_header_v2
}

// ---------------------------------------------------------------- column chunks

struct KeyValue {
  1: required string key
  2: optional string value
}

// One sort key of a row group.
struct SortingColumn {
  1: required i32 column_idx  // leaf number
  2: required bool descending
  3: required bool nulls_first
}

// A tally: so many pages of this kind with this encoding.
struct PageEncodingStats {
  1: required PageType page_type
  2: required Encoding encoding
  3: required i32 count
}

// Offsets count from the start of the file. With a column key this is a module (PME 5.3).
struct ColumnMetaData {
  1: required Type type
  2: required list<Encoding> encodings
  3: required list<string> path_in_schema     // names from below the root down to the leaf
  4: required CompressionCodec codec
  5: required i64 num_values                  // nulls count too
  6: required i64 total_uncompressed_size     // page headers counted
  7: required i64 total_compressed_size       // as stored; page headers and encryption counted
  8: optional list<KeyValue> key_value_metadata
  9: required i64 data_page_offset
  10: optional i64 index_page_offset
  11: optional i64 dictionary_page_offset
  12: optional Statistics statistics
  13: optional list<PageEncodingStats> encoding_stats
  14: optional i64 bloom_filter_offset
  15: optional i32 bloom_filter_length        // header and bitset
  16: optional SizeStatistics size_statistics
  17: optional GeospatialStatistics geospatial_statistics
}

// The column shares the key of the footer (PME 5.2).
struct EncryptionWithFooterKey {}

// The column has a key to itself (PME 5.2).
struct EncryptionWithColumnKey {
  1: required list<string> path_in_schema
  2: optional binary key_metadata  // lets a reader find the key (PME 4.3)
}

// Which key a column is under (PME 5.2).
union ColumnCryptoMetaData {
  1: EncryptionWithFooterKey ENCRYPTION_WITH_FOOTER_KEY
  2: EncryptionWithColumnKey ENCRYPTION_WITH_COLUMN_KEY
}

struct ColumnChunk {
  1: optional string file_path                      // only seen in "_metadata" summary files
  2: required i64 file_offset = 0                   // old; write 0 and do not trust
  3: optional ColumnMetaData meta_data              // own key: left out (PME 5.4) or without statistics (PME 5.5)
  4: optional i64 offset_index_offset
  5: optional i32 offset_index_length
  6: optional i64 column_index_offset
  7: optional i32 column_index_length
  8: optional ColumnCryptoMetaData crypto_metadata  // absent: column is not encrypted (PME 5.2)
  9: optional binary encrypted_column_metadata      // ColumnMetaData as an encrypted module (PME 5.3)
}

struct RowGroup {
  1: required list<ColumnChunk> columns             // one per leaf, in schema order
  2: required i64 total_byte_size                   // before compression
  3: required i64 num_rows
  4: optional list<SortingColumn> sorting_columns   // major key first
  5: optional i64 file_offset                       // of the first page
  6: optional i64 total_compressed_size             // as stored
  7: optional i16 ordinal                           // goes into the AAD suffix (PME 4.4.2, 5.2)
}

// ---------------------------------------------------------------- column order

struct TypeDefinedOrder {}
struct IEEE754TotalOrder {}
struct Int96TimestampOrder {}

// What min and max mean; bounds under an unknown member are of no use.
union ColumnOrder {
  1: TypeDefinedOrder TYPE_ORDER                 // the usual order of the logical, else physical, type
  2: IEEE754TotalOrder IEEE_754_TOTAL_ORDER      // floating point only
  3: Int96TimestampOrder INT96_TIMESTAMP_ORDER   // INT96 only
}

// ---------------------------------------------------------------- page index

// One data page.
struct PageLocation {
  1: required i64 offset                // of the page header in the file
  2: required i32 compressed_page_size  // header and page as stored
  3: required i64 first_row_index       // counted within the row group
}

// Where the data pages of a chunk are. An encrypted column's is a module (PME 4.4.2).
struct OffsetIndex {
  1: required list<PageLocation> page_locations
  2: optional list<i64> unencoded_byte_array_data_bytes  // per page; see SizeStatistics
}

// Bounds and counts per data page; parallel to OffsetIndex.page_locations.
struct ColumnIndex {
  1: required list<bool> null_pages     // true: nulls only, bounds are empty strings
  2: required list<binary> min_values
  3: required list<binary> max_values
  4: required BoundaryOrder boundary_order
  5: optional list<i64> null_counts     // absent is not zero
  6: optional list<i64> repetition_level_histograms  // page after page
  7: optional list<i64> definition_level_histograms  // page after page
  8: optional list<i64> nan_counts      // floating point only; absent is not zero
}

// ---------------------------------------------------------------- encryption

// Every module under GCM (PME 4.2.1, 5.2).
struct AesGcmV1 {
  1: optional binary aad_prefix       // PME 4.4.1
  2: optional binary aad_file_unique  // random file id that starts each AAD suffix (PME 4.4.2)
  3: optional bool supply_aad_prefix  // true: prefix is in use but not stored (PME 5.2)
}

// Pages under CTR, all other modules under GCM (PME 4.2.2, 5.2).
struct AesGcmCtrV1 {
  1: optional binary aad_prefix       // PME 4.4.1
  2: optional binary aad_file_unique  // random file id that starts each AAD suffix (PME 4.4.2)
  3: optional bool supply_aad_prefix  // true: prefix is in use but not stored (PME 5.2)
}

// PME 4.2, 5.2.
union EncryptionAlgorithm {
  1: AesGcmV1 AES_GCM_V1
  2: AesGcmCtrV1 AES_GCM_CTR_V1
}

// ---------------------------------------------------------------- footer

// The footer itself.
struct FileMetaData {
  1: required i32 version                         // write 1; read 1 and 2 alike
  2: required list<SchemaElement> schema          // root first
  3: required i64 num_rows
  4: required list<RowGroup> row_groups
  5: optional list<KeyValue> key_value_metadata
  6: optional string created_by                   // "name version x.y.z (build hash)"
  7: optional list<ColumnOrder> column_orders     // one per leaf; min_value/max_value need it
  8: optional EncryptionAlgorithm encryption_algorithm  // plaintext footer mode only (PME 5.5)
  9: optional binary footer_signing_key_metadata  // plaintext footer mode only (PME 5.5)
}

// Stands in the clear before an encrypted footer (PME 5.4).
struct FileCryptoMetaData {
  1: required EncryptionAlgorithm encryption_algorithm
  2: optional binary key_metadata  // of the footer key (PME 4.3)
}
