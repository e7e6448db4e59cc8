package modcrypt;

import java.util.List;
import org.apache.spark.sql.catalyst.CatalystTypeConverters;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.types.StructType;
import scala.Function1;

/** The rows of a report, as the result of a procedure. */
final class ReportScan implements LocalScan {
  private final StructType schema;
  private final InternalRow[] rows;

  ReportScan(StructType schema, List report) {
    this.schema = schema;
    Function1 converter = CatalystTypeConverters.createToCatalystConverter(schema);
    rows = new InternalRow[report.size()];
    for (int at = 0; at < rows.length; at++) {
      rows[at] = (InternalRow) converter.apply(report.get(at));
    }
  }

  public StructType readSchema() {
    return schema;
  }

  public InternalRow[] rows() {
    return rows;
  }
}
