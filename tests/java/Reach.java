import com.couchbase.client.java.Cluster;
import java.time.Duration;
import java.util.Map;
import java.util.logging.Level;
import java.util.logging.Logger;

/** Stores and reads a document, then queries; prints the document and the query's error. Arguments: CONNECTION USER PASSWORD BUCKET. */
public class Reach {
  public static void main(String[] arguments) {
    Logger.getLogger("com.couchbase").setLevel(Level.SEVERE);
    Cluster cluster = Cluster.connect(arguments[0], arguments[1], arguments[2]);
    cluster.waitUntilReady(Duration.ofSeconds(20));
    var bucket = cluster.bucket(arguments[3]);
    bucket.waitUntilReady(Duration.ofSeconds(20));
    bucket.defaultCollection().upsert("reached", Map.of("by", "Java"));
    System.out.println("reached by " + bucket.defaultCollection().get("reached").contentAsObject().getString("by"));
    try {
      cluster.query("SELECT 1");
    } catch (RuntimeException error) {
      System.out.println(error);
    }
    System.exit(0);
  }
}
