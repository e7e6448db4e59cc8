"""The structs of which a footer has thousands, with the fields of the IDL.

`idl` uses these classes instead of those that thriftpy2 creates: compiled functions that declare
them read their fields in a tenth of the time. A test compares the fields with the IDL.
"""

from __future__ import annotations

from typing import Any

from modcrypt.parquet.format.compact import Located


class SchemaElement:
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
    _unknown: Any = None


class ColumnMetaData:
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
    encoding_stats: Any = None
    bloom_filter_offset: Any = None
    bloom_filter_length: Any = None
    _statistics: Any = None
    _size_statistics: Any = None
    _geospatial_statistics: Any = None
    _unknown: Any = None

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


class EncryptionWithColumnKey:
    """The crypto metadata of a column chunk whose column has a key of its own."""

    path_in_schema: Any = None
    key_metadata: Any = None
    _unknown: Any = None


class ColumnCryptoMetaData:
    """The crypto metadata of a column chunk: one of its two members is set."""

    ENCRYPTION_WITH_FOOTER_KEY: Any = None
    ENCRYPTION_WITH_COLUMN_KEY: Any = None
    _unknown: Any = None


class ColumnChunk:
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
    _unknown: Any = None

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
