import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.*;
import java.io.IOException;
import java.math.BigInteger;
import java.util.*;
import org.apache.parquet.column.page.PageReadStore;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.example.data.simple.convert.GroupRecordConverter;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.io.*;
import org.apache.parquet.schema.*;
import org.apache.parquet.schema.LogicalTypeAnnotation.*;

/** Rows of parquet-java's groups, and these as tagged values. */
class GroupRows {
  static List<Group> groups(ParquetFileReader reader) throws IOException {
    MessageType schema = reader.getFileMetaData().getSchema();
    MessageColumnIO io = new ColumnIOFactory(reader.getFileMetaData().getCreatedBy()).getColumnIO(schema);
    List<Group> found = new ArrayList<>();
    for (PageReadStore pages; (pages = reader.readNextRowGroup()) != null; ) {
      RecordReader<Group> records = io.getRecordReader(pages, new GroupRecordConverter(schema));
      for (long left = pages.getRowCount(); left > 0; left--) found.add(records.read());
    }
    return found;
  }

  static ObjectNode tagged(ParquetFileReader reader) throws IOException {
    ObjectNode result = Messages.outcome("rows");
    ArrayNode columns = result.putArray("columns"), rows = result.putArray("rows");
    MessageType schema = reader.getFileMetaData().getSchema();
    schema.getFields().forEach(field -> columns.add(field.getName()));
    for (Group group : groups(reader)) {
      ArrayNode row = rows.addArray();
      for (int f = 0; f < schema.getFieldCount(); f++) row.add(field(group, f));
    }
    return result;
  }

  private static JsonNode field(Group group, int f) {
    Type type = group.getType().getType(f);
    if (group.getFieldRepetitionCount(f) == 0) return NullNode.instance;
    return type.isPrimitive() ? value(group, f, type.asPrimitiveType()) : nested(group.getGroup(f, 0), type);
  }

  private static JsonNode nested(Group group, Type type) {
    if (type.getLogicalTypeAnnotation() instanceof ListLogicalTypeAnnotation) {
      ArrayNode items = Messages.JSON.createArrayNode();
      for (int i = 0; i < group.getFieldRepetitionCount(0); i++) items.add(field(group.getGroup(0, i), 0));
      return Messages.JSON.createObjectNode().set("list", items);
    }
    ArrayNode pairs = Messages.JSON.createArrayNode();
    for (int f = 0; f < group.getType().getFieldCount(); f++)
      pairs.addArray().add(group.getType().getFieldName(f)).add(field(group, f));
    return Messages.JSON.createObjectNode().set("struct", pairs);
  }

  private static JsonNode value(Group group, int f, PrimitiveType type) {
    LogicalTypeAnnotation logical = type.getLogicalTypeAnnotation();
    switch (type.getPrimitiveTypeName()) {
      case BOOLEAN: return Messages.JSON.createObjectNode().put("boolean", group.getBoolean(f, 0));
      case INT32: return number(BigInteger.valueOf(group.getInteger(f, 0)), 32, logical);
      case INT64: return number(BigInteger.valueOf(group.getLong(f, 0)), 64, logical);
      case FLOAT: return text("float", Messages.HEX.toHexDigits(Float.floatToRawIntBits(group.getFloat(f, 0))));
      case DOUBLE: return text("double", Messages.HEX.toHexDigits(Double.doubleToRawLongBits(group.getDouble(f, 0))));
      default:
        byte[] raw = group.getBinary(f, 0).getBytes();
        if (logical instanceof DecimalLogicalTypeAnnotation) return number(new BigInteger(raw), 128, logical);
        return text(logical instanceof StringLogicalTypeAnnotation ? "string" : "binary", Messages.HEX.formatHex(raw));
    }
  }

  private static JsonNode number(BigInteger value, int bits, LogicalTypeAnnotation logical) {
    if (logical instanceof DecimalLogicalTypeAnnotation decimal)
      return text("decimal(" + decimal.getPrecision() + "," + decimal.getScale() + ")", value.toString());
    if (logical instanceof DateLogicalTypeAnnotation) return text("date", value.toString());
    if (logical instanceof TimestampLogicalTypeAnnotation time) {
      String unit = Map.of("MILLIS", "ms", "MICROS", "us", "NANOS", "ns").get(time.getUnit().name());
      return text("timestamp[" + unit + (time.isAdjustedToUTC() ? ",UTC]" : "]"), value.toString());
    }
    boolean signed = true;
    if (logical instanceof IntLogicalTypeAnnotation integer) {
      bits = integer.getBitWidth();
      signed = integer.isSigned();
    }
    if (!signed && value.signum() < 0) value = value.add(BigInteger.ONE.shiftLeft(Math.max(bits, 32)));
    return text((signed ? "int" : "uint") + bits, value.toString());
  }

  private static JsonNode text(String tag, String value) {
    return Messages.JSON.createObjectNode().put(tag, value);
  }
}
