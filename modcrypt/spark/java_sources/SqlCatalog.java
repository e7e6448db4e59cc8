package modcrypt;

import java.util.Locale;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A catalog of procedures for SQL, without tables: CALL modcrypt.verify('/lake/people').
 *
 * spark.sql.catalog.modcrypt=modcrypt.SqlCatalog declares it; with spark.sql.catalog.modcrypt.policy,
 * calls need not name a policy.
 */
public class SqlCatalog implements ProcedureCatalog {
  private String name;
  private String policy;

  public SqlCatalog() {}

  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    this.policy = options.get("policy");
  }

  public String name() {
    return name;
  }

  public UnboundProcedure loadProcedure(Identifier identifier) {
    String asked = identifier.name().toLowerCase(Locale.ROOT);
    if (identifier.namespace().length > 0 || !SqlProcedure.NAMES.contains(asked)) {
      throw new IllegalArgumentException(
          name + " has no procedure " + identifier + "; it has "
          + String.join(", ", SqlProcedure.NAMES));
    }
    return new SqlProcedure(asked, policy);
  }

  public Identifier[] listProcedures(String[] namespace) {
    Identifier[] found = new Identifier[namespace.length == 0 ? SqlProcedure.NAMES.size() : 0];
    for (int at = 0; at < found.length; at++) {
      found[at] = Identifier.of(namespace, (String) SqlProcedure.NAMES.get(at));
    }
    return found;
  }
}
