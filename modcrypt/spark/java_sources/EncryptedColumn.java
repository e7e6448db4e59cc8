package modcrypt;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;
import org.apache.parquet.format.ColumnChunk;
import org.apache.parquet.format.ColumnCryptoMetaData;
import org.apache.parquet.format.FieldRepetitionType;
import org.apache.parquet.format.FileMetaData;
import org.apache.parquet.format.RowGroup;
import org.apache.parquet.format.SchemaElement;

/** A leaf column of a file, and how the footer says that it is encrypted. */
final class EncryptedColumn {
  private static final int NO_ROWS = 0; // a file without row groups
  private static final int PLAINTEXT = 1;
  private static final int FOOTER_KEY = 2;
  private static final int COLUMN_KEY = 3;
  private static final int MAX_COLUMNS = 32768; // ordinals are int16 in the AAD, from 0
  private static final int MAX_ROW_GROUPS = 32768;
  private static final int MAX_DEPTH = 200; // of the schema

  final String[] leaf;
  private final boolean repeated; // whether a row can have several values, or none
  private int kind = NO_ROWS;
  final Set keyMetadata = new HashSet(); // of its own keys, as ByteBuffers

  private EncryptedColumn(String[] leaf, boolean repeated) {
    this.leaf = leaf;
    this.repeated = repeated;
  }

  /** Lists the leaves of a file; throws if row groups contradict the schema or one another. */
  static List list(FileMetaData file) {
    List columns = new ArrayList();
    List elements = file.getSchema();
    int end = elements.isEmpty() ? 0 : addLeaves(elements, 0, new String[0], false, columns);
    if (end != elements.size()) throw damaged("its schema is not one tree");
    if (columns.size() > MAX_COLUMNS || file.getRow_groupsSize() > MAX_ROW_GROUPS) {
      throw damaged("it declares more row groups or columns than a file can have");
    }
    long rows = 0;
    for (int r = 0; r < file.getRow_groupsSize(); r++) {
      RowGroup group = (RowGroup) file.getRow_groups().get(r);
      rows += addRowGroup(group, r, columns);
    }
    if (rows != file.getNum_rows()) throw damaged("its numbers of rows contradict one another");
    return columns;
  }

  /** Adds the chunks of a row group to their columns; returns its number of rows. */
  private static long addRowGroup(RowGroup group, int ordinal, List columns) {
    // parquet-java opens modules by the ordinal, Arrow C++ by the position.
    if (group.isSetOrdinal() && group.getOrdinal() != ordinal) {
      throw damaged("row groups were reordered or removed");
    }
    List chunks = group.getColumns();
    if (chunks.size() != columns.size()) throw damaged("a row group lacks columns");
    if (group.getNum_rows() < 0) throw damaged("a row group has a negative number of rows");
    for (int c = 0; c < chunks.size(); c++) {
      ((EncryptedColumn) columns.get(c)).add((ColumnChunk) chunks.get(c), group.getNum_rows());
    }
    return group.getNum_rows();
  }

  /** Adds the leaves below the element at a position; returns the position after them. */
  private static int addLeaves(
      List elements, int at, String[] path, boolean repeated, List columns) {
    if (path.length > MAX_DEPTH) throw damaged("its schema is nested too deeply");
    if (at >= elements.size()) throw damaged("its schema is cut off");
    SchemaElement element = (SchemaElement) elements.get(at);
    boolean several = repeated
        || (at > 0 && element.getRepetition_type() == FieldRepetitionType.REPEATED);
    int children = element.getNum_children();
    int next = at + 1;
    if (children <= 0 && at > 0) {
      columns.add(new EncryptedColumn(path, several));
      return next;
    }
    for (int n = 0; n < children; n++) {
      if (next >= elements.size()) throw damaged("its schema is cut off");
      String[] below = (String[]) Arrays.copyOf(path, path.length + 1);
      below[path.length] = ((SchemaElement) elements.get(next)).getName();
      next = addLeaves(elements, next, below, several, columns);
    }
    return next;
  }

  private void add(ColumnChunk chunk, long rows) {
    if (chunk.isSetFile_path()) throw damaged("a chunk of column " + name() + " is in another file");
    ColumnCryptoMetaData crypto = chunk.getCrypto_metadata();
    int found = crypto == null ? PLAINTEXT : FOOTER_KEY;
    if (crypto != null && crypto.isSetENCRYPTION_WITH_COLUMN_KEY()) {
      found = COLUMN_KEY;
      // parquet-java takes the column's name from here.
      checkPath(crypto.getENCRYPTION_WITH_COLUMN_KEY().getPath_in_schema());
      byte[] metadata = crypto.getENCRYPTION_WITH_COLUMN_KEY().getKey_metadata();
      if (metadata != null) keyMetadata.add(ByteBuffer.wrap(metadata));
    }
    if (chunk.isSetMeta_data()) {
      checkPath(chunk.getMeta_data().getPath_in_schema());
      long values = chunk.getMeta_data().getNum_values();
      if (values < rows || (values > rows && !repeated)) {
        throw damaged("column " + name() + " has " + values + " values in " + rows + " rows");
      }
    }
    if (kind != NO_ROWS && kind != found) {
      throw damaged("column " + name() + " is encrypted in different ways: no writer does so");
    }
    kind = found;
  }

  boolean isPlaintext() {
    return kind == PLAINTEXT;
  }

  boolean isUnderFooterKey() {
    return kind == FOOTER_KEY;
  }

  private void checkPath(List path) {
    if (!Arrays.asList(leaf).equals(path)) {
      throw damaged("a chunk of column " + name() + " names another column");
    }
  }

  String name() {
    return Texts.shown(Texts.dotted(leaf));
  }

  private static ParquetCryptoRuntimeException damaged(String why) {
    return new ParquetCryptoRuntimeException("the footer is damaged or forged: " + why);
  }
}
