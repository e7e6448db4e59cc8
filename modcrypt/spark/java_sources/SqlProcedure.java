package modcrypt;

import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;

/**
 * A procedure that runs a job on the files of a table and returns its report.
 *
 * The work is that of Python: the data source modcrypt_job (modcrypt/spark/jobs/job_source.py) plans
 * the job on the driver and runs it on executors. A procedure runs once and completely, whatever
 * becomes of its result; a query may be planned twice, or stop at its LIMIT.
 */
final class SqlProcedure implements UnboundProcedure, BoundProcedure {
  private static final String FORMAT = "modcrypt_job";

  // Procedures is generated from the declarations of verbs.
  static final List NAMES = Collections.unmodifiableList(Arrays.asList(Procedures.NAMES));

  private static final List NAMED_KEYS = Arrays.asList("policy", "kms", "footerKey", "columnKeys");

  private final String name;
  private final String policy;
  private final List parameters;

  /** Creates the procedure of a name; the policy, which may be null, is for calls without keys. */
  SqlProcedure(String name, String policy) {
    this.name = name;
    this.policy = policy;
    this.parameters = Arrays.asList(Procedures.parametersOf(name));
  }

  public String name() {
    return name;
  }

  public String description() {
    return "modcrypt's " + name + " for the files of a table";
  }

  public BoundProcedure bind(StructType inputs) {
    return this;
  }

  public boolean isDeterministic() {
    return false;
  }

  public ProcedureParameter[] parameters() {
    ProcedureParameter[] all = new ProcedureParameter[parameters.size()];
    for (int at = 0; at < all.length; at++) {
      String parameter = (String) parameters.get(at);
      ProcedureParameter.Builder builder = ProcedureParameter.in(parameter, DataTypes.StringType);
      all[at] = isRequired(parameter) ? builder.build() : builder.defaultValue("NULL").build();
    }
    return all;
  }

  private static boolean isRequired(String parameter) {
    return parameter.equals("path") || parameter.equals("source") || parameter.equals("destination");
  }

  public Iterator call(InternalRow input) {
    SparkSession session = SparkSession.active();
    Map options = options(input);
    options.put("job", name);
    options.put("slots", String.valueOf(session.sparkContext().defaultParallelism()));
    Dataset report = report(session, options);
    Scan scan = new ReportScan(report.schema(), report.collectAsList());
    return Collections.singletonList(scan).iterator();
  }

  private static Dataset report(SparkSession session, Map options) {
    try {
      return session.read().format(FORMAT).options(options).load();
    } catch (Throwable error) { // Scala declares none
      if (String.valueOf(error.getMessage()).contains("[DATA_SOURCE_NOT_FOUND]")) {
        throw new IllegalStateException(
            "the Python in which the driver plans queries lacks modcrypt: install it there, or name "
            + "a Python that has it in PYSPARK_DRIVER_PYTHON (else PYSPARK_PYTHON counts)", error);
      }
      Platform.throwException(error);
      return null;
    }
  }

  private Map options(InternalRow input) {
    Map options = new HashMap();
    for (int at = 0; at < parameters.size(); at++) {
      if (!input.isNullAt(at)) options.put(parameters.get(at), input.getUTF8String(at).toString());
    }
    if (policy != null && Collections.disjoint(options.keySet(), NAMED_KEYS)) {
      options.put("policy", policy);
    }
    return options;
  }
}
