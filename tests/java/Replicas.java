import static com.couchbase.client.java.kv.GetAllReplicasOptions.getAllReplicasOptions;
import static com.couchbase.client.java.kv.GetAnyReplicaOptions.getAnyReplicaOptions;
import static com.couchbase.client.java.kv.GetOptions.getOptions;
import static com.couchbase.client.java.kv.UpsertOptions.upsertOptions;

import com.couchbase.client.core.msg.kv.DurabilityLevel;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.kv.GetReplicaResult;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.logging.Level;
import java.util.logging.Logger;
import java.util.stream.Collectors;

/** Performs what it reads, one request per line, as tests/go/replicas does. Arguments: CONNECTION USER PASSWORD BUCKET. */
public class Replicas {
  private static final Duration TIMEOUT = Duration.ofSeconds(3);

  private static String role(GetReplicaResult read) {
    return read.isReplica() ? "replica" : "active";
  }

  private static String perform(Collection collection, String[] words) {
    String key = words[1];
    switch (words[0]) {
      case "set":
        DurabilityLevel level = words[3].equals("majority") ? DurabilityLevel.MAJORITY : DurabilityLevel.NONE;
        collection.upsert(key, words[2], upsertOptions().timeout(TIMEOUT).durability(level));
        return "";
      case "get":
        return collection.get(key, getOptions().timeout(TIMEOUT)).contentAs(String.class);
      case "any":
        GetReplicaResult any = collection.getAnyReplica(key, getAnyReplicaOptions().timeout(TIMEOUT));
        return any.contentAs(String.class) + " " + role(any);
      case "all":
        return collection.getAllReplicas(key, getAllReplicasOptions().timeout(TIMEOUT))
            .map(read -> read.contentAs(String.class) + ":" + role(read)).sorted().collect(Collectors.joining(" "));
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  public static void main(String[] arguments) throws Exception {
    Logger.getLogger("com.couchbase").setLevel(Level.OFF);
    Cluster cluster = Cluster.connect(arguments[0], arguments[1], arguments[2]);
    var bucket = cluster.bucket(arguments[3]);
    bucket.waitUntilReady(Duration.ofSeconds(20));
    BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = requests.readLine()) != null; ) {
      String answer;
      try {
        answer = ("ok " + perform(bucket.defaultCollection(), line.split(" "))).trim();
      } catch (RuntimeException error) {
        answer = "error " + String.valueOf(error).replace('\n', ' ').replaceAll("(.{300}).*", "$1");
      }
      System.out.println(answer);
    }
    System.exit(0);
  }
}
