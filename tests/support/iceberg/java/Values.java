import com.fasterxml.jackson.databind.JsonNode;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.ByteBuffers;

/**
 * Values of rows as JSON: times in ISO 8601 with microseconds, those with a zone in UTC; bytes in
 * hex; decimals as text; floats as the doubles that they are; structs as objects; maps as pairs.
 */
final class Values {
  private static final DateTimeFormatter TIME = DateTimeFormatter.ofPattern("HH:mm:ss.SSSSSS");
  private static final DateTimeFormatter MOMENT =
      DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSSSSS");

  private Values() {}

  static Object toJson(Type type, Object value) {
    if (value == null) {
      return null;
    }
    return switch (type.typeId()) {
      case FLOAT, DOUBLE -> real(((Number) value).doubleValue());
      case DECIMAL -> ((BigDecimal) value).toPlainString();
      case TIME -> TIME.format((LocalTime) value);
      case TIMESTAMP, TIMESTAMP_NANO -> moment(value);
      case FIXED -> HexFormat.of().formatHex((byte[]) value);
      case BINARY ->
          HexFormat.of().formatHex(ByteBuffers.toByteArray(((ByteBuffer) value).duplicate()));
      case STRUCT -> struct(type.asStructType(), (Record) value);
      case LIST -> list(type.asListType().elementType(), (List<?>) value);
      case MAP -> map(type.asMapType(), (Map<?, ?>) value);
      case BOOLEAN, INTEGER, LONG -> value;
      default -> value.toString(); // strings, dates, UUIDs
    };
  }

  static Map<String, Object> struct(Types.StructType type, Record row) {
    Map<String, Object> found = new LinkedHashMap<>();
    for (Types.NestedField field : type.fields()) {
      found.put(field.name(), toJson(field.type(), row.getField(field.name())));
    }
    return found;
  }

  private static Object real(double value) {
    return Double.isFinite(value) ? (Object) value : String.valueOf(value);
  }

  private static String moment(Object value) {
    if (value instanceof OffsetDateTime zoned) {
      return MOMENT.format(zoned.withOffsetSameInstant(ZoneOffset.UTC)) + "+00:00";
    }
    return MOMENT.format((LocalDateTime) value);
  }

  private static List<Object> list(Type type, List<?> values) {
    List<Object> found = new ArrayList<>();
    values.forEach(one -> found.add(toJson(type, one)));
    return found;
  }

  private static List<Object> map(Types.MapType type, Map<?, ?> values) {
    List<Object> found = new ArrayList<>();
    for (Map.Entry<?, ?> one : values.entrySet()) {
      List<Object> pair = new ArrayList<>();
      pair.add(toJson(type.keyType(), one.getKey()));
      pair.add(toJson(type.valueType(), one.getValue()));
      found.add(pair);
    }
    return found;
  }

  static Object fromJson(Type type, JsonNode value) {
    if (value == null || value.isNull()) {
      return null;
    }
    return switch (type.typeId()) {
      case BOOLEAN -> value.asBoolean();
      case INTEGER -> value.asInt();
      case LONG -> value.asLong();
      case FLOAT -> (float) real(value);
      case DOUBLE -> real(value);
      case DECIMAL -> new BigDecimal(value.asText());
      case DATE -> LocalDate.parse(value.asText());
      case TIME -> LocalTime.parse(value.asText());
      case TIMESTAMP, TIMESTAMP_NANO -> moment(value.asText());
      case UUID -> UUID.fromString(value.asText());
      case FIXED -> HexFormat.of().parseHex(value.asText());
      case BINARY -> ByteBuffer.wrap(HexFormat.of().parseHex(value.asText()));
      case STRUCT -> record(type.asStructType(), value);
      case LIST -> list(type.asListType().elementType(), value);
      case MAP -> map(type.asMapType(), value);
      default -> value.asText();
    };
  }

  static Record record(Types.StructType type, JsonNode row) {
    Record found = GenericRecord.create(type);
    for (Types.NestedField field : type.fields()) {
      found.setField(field.name(), fromJson(field.type(), row.get(field.name())));
    }
    return found;
  }

  private static double real(JsonNode value) {
    return value.isTextual() ? Double.parseDouble(value.asText()) : value.asDouble();
  }

  private static Object moment(String text) {
    boolean zoned = text.endsWith("+00:00");
    return zoned ? (Object) OffsetDateTime.parse(text) : LocalDateTime.parse(text);
  }

  private static List<Object> list(Type type, JsonNode values) {
    List<Object> found = new ArrayList<>();
    values.forEach(one -> found.add(fromJson(type, one)));
    return found;
  }

  private static Map<Object, Object> map(Types.MapType type, JsonNode pairs) {
    Map<Object, Object> found = new LinkedHashMap<>();
    for (JsonNode one : pairs) {
      found.put(fromJson(type.keyType(), one.get(0)), fromJson(type.valueType(), one.get(1)));
    }
    return found;
  }
}
