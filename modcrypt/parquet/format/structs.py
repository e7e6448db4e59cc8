"""The structs of which a footer has thousands, with the fields of the IDL.

`idl` uses these classes instead of those that thriftpy2 creates: compiled functions that declare
them read their fields in a tenth of the time. A test compares the fields with the IDL.
"""

from __future__ import annotations

from typing import Any

from modcrypt.parquet.format.compact import Located, OwnStruct


class SchemaElement(OwnStruct):
    """A leaf or a group of a schema."""

    type: Any = None
    type_length: Any = None
    repetition_type: Any = None
    name: Any = None
    num_children: Any = None
    converted_type: Any = None
    scale: Any = None
    precision: Any = None
    field_id: Any = None
    logicalType: Any = None  # noqa: N815  # the name in the IDL

    def _list_fields(self) -> list[Any]:
        """Return the stored values of the fields, in the order of their ids."""
        return [
            self.type,
            self.type_length,
            self.repetition_type,
            self.name,
            self.num_children,
            self.converted_type,
            self.scale,
            self.precision,
            self.field_id,
            self.logicalType,
        ]

    def _with_fields(self, values: list[Any]) -> SchemaElement:
        """Return another struct of the class, with these stored values."""
        value = SchemaElement()
        value.type = values[0]
        value.type_length = values[1]
        value.repetition_type = values[2]
        value.name = values[3]
        value.num_children = values[4]
        value.converted_type = values[5]
        value.scale = values[6]
        value.precision = values[7]
        value.field_id = values[8]
        value.logicalType = values[9]
        return value


class ColumnMetaData(OwnStruct):
    """The metadata of a column chunk, whose statistics may only be located yet."""

    type: Any = None
    encodings: Any = None
    path_in_schema: Any = None
    codec: Any = None
    num_values: Any = None
    total_uncompressed_size: Any = None
    total_compressed_size: Any = None
    key_value_metadata: Any = None
    data_page_offset: Any = None
    index_page_offset: Any = None
    dictionary_page_offset: Any = None
    _statistics: Any = None
    encoding_stats: Any = None
    bloom_filter_offset: Any = None
    bloom_filter_length: Any = None
    _size_statistics: Any = None
    _geospatial_statistics: Any = None

    @property
    def statistics(self) -> Any:
        """Bounds and counts."""
        value = self._statistics  # another thread may decode it, too
        if isinstance(value, Located):
            value = self._statistics = value.read()
        return value

    @statistics.setter
    def statistics(self, value: Any) -> None:
        self._statistics = value

    @property
    def size_statistics(self) -> Any:
        """Histograms of levels."""
        value = self._size_statistics  # another thread may decode it, too
        if isinstance(value, Located):
            value = self._size_statistics = value.read()
        return value

    @size_statistics.setter
    def size_statistics(self, value: Any) -> None:
        self._size_statistics = value

    @property
    def geospatial_statistics(self) -> Any:
        """Bounding box and types of geometries."""
        value = self._geospatial_statistics  # another thread may decode it, too
        if isinstance(value, Located):
            value = self._geospatial_statistics = value.read()
        return value

    @geospatial_statistics.setter
    def geospatial_statistics(self, value: Any) -> None:
        self._geospatial_statistics = value

    def _list_fields(self) -> list[Any]:
        """Return the stored values of the fields, in the order of their ids."""
        return [
            self.type,
            self.encodings,
            self.path_in_schema,
            self.codec,
            self.num_values,
            self.total_uncompressed_size,
            self.total_compressed_size,
            self.key_value_metadata,
            self.data_page_offset,
            self.index_page_offset,
            self.dictionary_page_offset,
            self._statistics,
            self.encoding_stats,
            self.bloom_filter_offset,
            self.bloom_filter_length,
            self._size_statistics,
            self._geospatial_statistics,
        ]

    def _with_fields(self, values: list[Any]) -> ColumnMetaData:
        """Return another struct of the class, with these stored values."""
        value = ColumnMetaData()
        value.type = values[0]
        value.encodings = values[1]
        value.path_in_schema = values[2]
        value.codec = values[3]
        value.num_values = values[4]
        value.total_uncompressed_size = values[5]
        value.total_compressed_size = values[6]
        value.key_value_metadata = values[7]
        value.data_page_offset = values[8]
        value.index_page_offset = values[9]
        value.dictionary_page_offset = values[10]
        value._statistics = values[11]
        value.encoding_stats = values[12]
        value.bloom_filter_offset = values[13]
        value.bloom_filter_length = values[14]
        value._size_statistics = values[15]
        value._geospatial_statistics = values[16]
        return value


class EncryptionWithColumnKey(OwnStruct):
    """The crypto metadata of a column chunk whose column has a key of its own."""

    path_in_schema: Any = None
    key_metadata: Any = None

    def _list_fields(self) -> list[Any]:
        """Return the stored values of the fields, in the order of their ids."""
        return [self.path_in_schema, self.key_metadata]

    def _with_fields(self, values: list[Any]) -> EncryptionWithColumnKey:
        """Return another struct of the class, with these stored values."""
        value = EncryptionWithColumnKey()
        value.path_in_schema = values[0]
        value.key_metadata = values[1]
        return value


class ColumnCryptoMetaData(OwnStruct):
    """The crypto metadata of a column chunk: one of its two members is set."""

    ENCRYPTION_WITH_FOOTER_KEY: Any = None
    ENCRYPTION_WITH_COLUMN_KEY: Any = None

    def _list_fields(self) -> list[Any]:
        """Return the stored values of the fields, in the order of their ids."""
        return [self.ENCRYPTION_WITH_FOOTER_KEY, self.ENCRYPTION_WITH_COLUMN_KEY]

    def _with_fields(self, values: list[Any]) -> ColumnCryptoMetaData:
        """Return another struct of the class, with these stored values."""
        value = ColumnCryptoMetaData()
        value.ENCRYPTION_WITH_FOOTER_KEY = values[0]
        value.ENCRYPTION_WITH_COLUMN_KEY = values[1]
        return value


class ColumnChunk(OwnStruct):
    """A column chunk: its metadata, the places of its indexes, and how it is encrypted.

    The metadata may only be located yet: most are of no use to a reader of few row groups.
    """

    file_path: Any = None
    file_offset: Any = None
    _meta_data: Any = None
    offset_index_offset: Any = None
    offset_index_length: Any = None
    column_index_offset: Any = None
    column_index_length: Any = None
    crypto_metadata: Any = None
    encrypted_column_metadata: Any = None

    @property
    def meta_data(self) -> Any:
        """The metadata."""
        value = self._meta_data  # another thread may decode it, too
        if isinstance(value, Located):
            value = self._meta_data = value.read()
        return value

    @meta_data.setter
    def meta_data(self, value: Any) -> None:
        self._meta_data = value

    def _list_fields(self) -> list[Any]:
        """Return the stored values of the fields, in the order of their ids."""
        return [
            self.file_path,
            self.file_offset,
            self._meta_data,
            self.offset_index_offset,
            self.offset_index_length,
            self.column_index_offset,
            self.column_index_length,
            self.crypto_metadata,
            self.encrypted_column_metadata,
        ]

    def _with_fields(self, values: list[Any]) -> ColumnChunk:
        """Return another struct of the class, with these stored values."""
        value = ColumnChunk()
        value.file_path = values[0]
        value.file_offset = values[1]
        value._meta_data = values[2]
        value.offset_index_offset = values[3]
        value.offset_index_length = values[4]
        value.column_index_offset = values[5]
        value.column_index_length = values[6]
        value.crypto_metadata = values[7]
        value.encrypted_column_metadata = values[8]
        return value
