import static com.couchbase.client.java.kv.DecrementOptions.decrementOptions;
import static com.couchbase.client.java.kv.GetAndLockOptions.getAndLockOptions;
import static com.couchbase.client.java.kv.GetOptions.getOptions;
import static com.couchbase.client.java.kv.IncrementOptions.incrementOptions;
import static com.couchbase.client.java.kv.InsertOptions.insertOptions;
import static com.couchbase.client.java.kv.RemoveOptions.removeOptions;
import static com.couchbase.client.java.kv.ReplaceOptions.replaceOptions;
import static com.couchbase.client.java.kv.UpsertOptions.upsertOptions;

import com.couchbase.client.core.error.CasMismatchException;
import com.couchbase.client.core.error.CouchbaseException;
import com.couchbase.client.core.error.DocumentExistsException;
import com.couchbase.client.core.error.DocumentNotFoundException;
import com.couchbase.client.core.error.DurabilityLevelNotAvailableException;
import com.couchbase.client.core.error.TimeoutException;
import com.couchbase.client.core.error.ValueTooLargeException;
import com.couchbase.client.core.msg.kv.DurabilityLevel;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.ClusterOptions;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.codec.RawBinaryTranscoder;
import com.couchbase.client.java.codec.RawStringTranscoder;
import com.couchbase.client.java.json.JsonArray;
import com.couchbase.client.java.json.JsonObject;
import com.couchbase.client.java.kv.AppendOptions;
import com.couchbase.client.java.kv.GetResult;
import com.couchbase.client.java.kv.MutationResult;
import com.couchbase.client.java.kv.PrependOptions;
import com.couchbase.client.java.kv.UnlockOptions;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;
import java.util.stream.IntStream;
import reactor.core.publisher.Flux;

/**
 * The checks of tests/clients/checks.py through the Couchbase SDK for Java.
 * Arguments: CONNECTION USER PASSWORD BUCKET [AUTHORITY]; prints {@code ok NAME} or {@code not ok NAME: reason}.
 */
public final class Checks {
  private static final int MEBIBYTE = 1024 * 1024;
  private static final Duration PATIENT = Duration.ofSeconds(30);
  private static final Duration QUICK = Duration.ofMillis(700);

  private interface Check {
    void run(Collection collection, String key) throws Exception;
  }

  private interface Step {
    void run() throws Exception;
  }

  private static final Map<String, Check> CHECKS = new LinkedHashMap<>();

  private static void expect(boolean holds, String what) {
    if (!holds) {
      throw new AssertionError(what);
    }
  }

  private static void equal(Object got, Object expected) {
    expect(expected.equals(got), got + ", not " + expected);
  }

  @SafeVarargs
  private static Throwable fails(Step step, Class<? extends Throwable>... kinds) {
    try {
      step.run();
    } catch (Throwable error) {
      expect(Arrays.stream(kinds).anyMatch(kind -> kind.isInstance(error)), error + ", " + Arrays.toString(kinds) + " expected");
      return error;
    }
    throw new AssertionError("no error, " + Arrays.toString(kinds) + " expected");
  }

  private static void missing(Collection c, String key) {
    fails(() -> c.get(key), DocumentNotFoundException.class);
  }

  private static void sleep() throws InterruptedException {
    Thread.sleep(3200);
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  static {
    CHECKS.put("upsert-get", (c, key) -> {
      JsonObject document = JsonObject.create().put("text", "grüße").put("number", 1.5).put("list", JsonArray.from(1, null, true));
      MutationResult written = c.upsert(key, document);
      GetResult read = c.get(key);
      equal(read.contentAsObject(), document);
      equal(read.cas(), written.cas());
      expect(written.mutationToken().isPresent(), "no mutation token");
    });
    CHECKS.put("get-missing", Checks::missing);
    CHECKS.put("insert", (c, key) -> {
      c.insert(key, 1);
      equal(c.get(key).contentAs(Integer.class), 1);
    });
    CHECKS.put("insert-existing", (c, key) -> {
      c.insert(key, 1);
      fails(() -> c.insert(key, 2), DocumentExistsException.class);
      equal(c.get(key).contentAs(Integer.class), 1);
    });
    CHECKS.put("replace", (c, key) -> {
      long cas = c.upsert(key, 1).cas();
      c.replace(key, 2, replaceOptions().cas(cas));
      c.replace(key, 3);
      equal(c.get(key).contentAs(Integer.class), 3);
    });
    CHECKS.put("replace-missing", (c, key) -> fails(() -> c.replace(key, 1), DocumentNotFoundException.class));
    CHECKS.put("replace-cas-mismatch", (c, key) -> {
      long cas = c.upsert(key, 1).cas();
      c.upsert(key, 2);
      fails(() -> c.replace(key, 3, replaceOptions().cas(cas)), CasMismatchException.class);
      equal(c.get(key).contentAs(Integer.class), 2);
    });
    CHECKS.put("remove", (c, key) -> {
      long cas = c.upsert(key, 1).cas();
      c.remove(key, removeOptions().cas(cas));
      missing(c, key);
    });
    CHECKS.put("remove-missing", (c, key) -> fails(() -> c.remove(key), DocumentNotFoundException.class));
    CHECKS.put("remove-cas-mismatch", (c, key) -> {
      long cas = c.upsert(key, 1).cas();
      c.upsert(key, 2);
      fails(() -> c.remove(key, removeOptions().cas(cas)), CasMismatchException.class);
      equal(c.get(key).contentAs(Integer.class), 2);
    });
    CHECKS.put("exists", (c, key) -> {
      expect(!c.exists(key).exists(), "exists before");
      c.upsert(key, 1);
      expect(c.exists(key).exists(), "does not exist after");
    });
    CHECKS.put("touch", (c, key) -> {
      c.upsert(key, 1);
      c.touch(key, Duration.ofSeconds(2));
      sleep();
      missing(c, key);
      fails(() -> c.touch(key, Duration.ofSeconds(2)), DocumentNotFoundException.class);
    });
    CHECKS.put("get-and-touch", (c, key) -> {
      c.upsert(key, 1, upsertOptions().expiry(Duration.ofSeconds(2)));
      equal(c.getAndTouch(key, Duration.ofMinutes(1)).contentAs(Integer.class), 1);
      sleep();
      equal(c.get(key).contentAs(Integer.class), 1);
    });
    CHECKS.put("expiry", (c, key) -> {
      c.upsert(key, 1, upsertOptions().expiry(Duration.ofSeconds(2)));
      equal(c.get(key).contentAs(Integer.class), 1);
      sleep();
      missing(c, key);
      c.insert(key, 2);
    });
    CHECKS.put("preserve-expiry", (c, key) -> {
      c.upsert(key, 1, upsertOptions().expiry(Duration.ofSeconds(2)));
      c.upsert(key, 2, upsertOptions().preserveExpiry(true));
      sleep();
      missing(c, key);
    });
    CHECKS.put("get-and-lock", (c, key) -> {
      c.upsert(key, 1);
      GetResult locked = c.getAndLock(key, Duration.ofSeconds(10));
      equal(locked.contentAs(Integer.class), 1);
      equal(c.get(key).contentAs(Integer.class), 1);
      for (Step step : List.<Step>of(() -> c.upsert(key, 2, upsertOptions().timeout(QUICK)), () -> c.getAndLock(key, Duration.ofSeconds(10), getAndLockOptions().timeout(QUICK)))) {
        String told = String.valueOf(fails(step, CouchbaseException.class));
        expect(told.toLowerCase().contains("lock"), told);
      }
      c.replace(key, 3, replaceOptions().cas(locked.cas()));
      c.upsert(key, 4);
    });
    CHECKS.put("unlock", (c, key) -> {
      c.upsert(key, 1);
      long cas = c.getAndLock(key, Duration.ofSeconds(15)).cas();
      c.unlock(key, cas);
      c.upsert(key, 2);
      fails(() -> c.unlock(key, cas, UnlockOptions.unlockOptions().timeout(QUICK)), CouchbaseException.class);
    });
    CHECKS.put("counter", (c, key) -> {
      equal(c.binary().increment(key, incrementOptions().initial(10).delta(5)).content(), 10L);
      equal(c.binary().increment(key, incrementOptions().delta(5)).content(), 15L);
      equal(c.binary().decrement(key, decrementOptions().delta(3)).content(), 12L);
      equal(c.binary().decrement(key, decrementOptions().delta(100)).content(), 0L);
      equal(c.get(key).contentAs(Integer.class), 0);
    });
    CHECKS.put("counter-missing", (c, key) -> fails(() -> c.binary().increment(key), DocumentNotFoundException.class));
    CHECKS.put("counter-not-a-number", (c, key) -> {
      c.upsert(key, JsonObject.create());
      // The SDK has no error of its own for this status of a counter.
      Throwable error = fails(() -> c.binary().increment(key), CouchbaseException.class);
      expect(!(error instanceof TimeoutException), String.valueOf(error));
    });
    CHECKS.put("append-prepend", (c, key) -> {
      c.upsert(key, bytes("b"), upsertOptions().transcoder(RawBinaryTranscoder.INSTANCE));
      long cas = c.binary().append(key, bytes("c")).cas();
      c.binary().prepend(key, bytes("a"), PrependOptions.prependOptions().cas(cas));
      equal(new String(c.get(key, getOptions().transcoder(RawBinaryTranscoder.INSTANCE)).contentAsBytes(), StandardCharsets.UTF_8), "abc");
      fails(() -> c.binary().append(key, bytes("x"), AppendOptions.appendOptions().cas(cas)), CasMismatchException.class, DocumentExistsException.class);
    });
    CHECKS.put("append-missing", (c, key) -> {
      Throwable error = fails(() -> c.binary().append(key, bytes("x")), CouchbaseException.class);
      expect(!(error instanceof TimeoutException), String.valueOf(error));
      missing(c, key);
    });
    CHECKS.put("durability-majority", (c, key) -> {
      DurabilityLevel level = DurabilityLevel.MAJORITY;
      long cas = c.upsert(key, 1, upsertOptions().durability(level)).cas();
      c.replace(key, 2, replaceOptions().cas(cas).durability(level));
      c.remove(key, removeOptions().durability(level));
      c.insert(key, 3, insertOptions().durability(level));
      equal(c.binary().increment(key, incrementOptions().durability(level)).content(), 4L);
    });
    CHECKS.put("durability-persist-refused", (c, key) -> {
      for (DurabilityLevel level : List.of(DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE, DurabilityLevel.PERSIST_TO_MAJORITY)) {
        fails(() -> c.upsert(key, 1, upsertOptions().durability(level)), DurabilityLevelNotAvailableException.class);
      }
      missing(c, key);
    });
    CHECKS.put("large-value", (c, key) -> {
      for (int size : new int[] {32 * 1024, 32 * 1024 + 1, MEBIBYTE, 20 * MEBIBYTE}) {
        byte[] value = new byte[size];
        Arrays.fill(value, (byte) (size % 127));
        c.upsert(key, value, upsertOptions().transcoder(RawBinaryTranscoder.INSTANCE).timeout(PATIENT));
        byte[] read = c.get(key, getOptions().transcoder(RawBinaryTranscoder.INSTANCE).timeout(PATIENT)).contentAsBytes();
        expect(Arrays.equals(read, value), size + " bytes");
      }
    });
    CHECKS.put("too-big", (c, key) -> {
      c.upsert(key, 1);
      fails(() -> c.upsert(key, new byte[20 * MEBIBYTE + 1], upsertOptions().transcoder(RawBinaryTranscoder.INSTANCE).timeout(PATIENT)), ValueTooLargeException.class);
      equal(c.get(key).contentAs(Integer.class), 1);
    });
    CHECKS.put("binary-value", (c, key) -> {
      byte[] value = new byte[256];
      IntStream.range(0, 256).forEach(n -> value[n] = (byte) n);
      c.upsert(key, value, upsertOptions().transcoder(RawBinaryTranscoder.INSTANCE));
      expect(Arrays.equals(c.get(key, getOptions().transcoder(RawBinaryTranscoder.INSTANCE)).contentAsBytes(), value), "different bytes");
    });
    CHECKS.put("string-value", (c, key) -> {
      c.upsert(key, "grüße", upsertOptions().transcoder(RawStringTranscoder.INSTANCE));
      equal(c.get(key, getOptions().transcoder(RawStringTranscoder.INSTANCE)).contentAs(String.class), "grüße");
    });
    CHECKS.put("any-replica", (c, key) -> {
      c.upsert(key, 1);
      equal(c.getAnyReplica(key).contentAs(Integer.class), 1);
      equal(c.getAllReplicas(key).count(), 1L);
    });
    CHECKS.put("batch", (c, key) -> {
      List<Integer> all = IntStream.range(0, 500).boxed().toList();
      Flux.fromIterable(all).flatMap(n -> c.reactive().upsert(key + "-" + n, n)).blockLast();
      Long same = Flux.fromIterable(all).flatMap(n -> c.reactive().get(key + "-" + n).filter(read -> read.contentAs(Integer.class).equals(n))).count().block();
      equal(same, 500L);
      Flux.fromIterable(all).flatMap(n -> c.reactive().remove(key + "-" + n)).blockLast();
    });
  }

  private static void say(String name, Throwable error) {
    synchronized (System.out) {
      System.out.println(error == null ? "ok " + name : "not ok " + name + ": " + String.valueOf(error).replace('\n', ' '));
    }
  }

  private static void one(String name, Check check, Collection collection) {
    String key = "java::" + name;
    try {
      try {
        collection.remove(key);
      } catch (DocumentNotFoundException ignored) {
        // An earlier run left nothing.
      }
      check.run(collection, key);
      say(name, null);
    } catch (Throwable error) {
      say(name, error);
    }
  }

  public static void main(String[] arguments) throws Exception {
    Logger.getLogger("com.couchbase").setLevel(Level.SEVERE);
    ClusterOptions options = ClusterOptions.clusterOptions(arguments[1], arguments[2])
        .environment(env -> {
          env.timeoutConfig(t -> t.kvTimeout(Duration.ofSeconds(8)).kvDurableTimeout(Duration.ofSeconds(8)).connectTimeout(Duration.ofSeconds(10)));
          if (arguments.length > 4) {
            env.securityConfig(s -> s.trustCertificate(Path.of(arguments[4])));
          }
        });
    try (Cluster cluster = Cluster.connect(arguments[0], options)) {
      Collection collection = cluster.bucket(arguments[3]).defaultCollection();
      try {
        cluster.bucket(arguments[3]).waitUntilReady(Duration.ofSeconds(20));
        say("connect", null);
      } catch (Throwable error) {
        say("connect", error);
        return;
      }
      ExecutorService running = Executors.newFixedThreadPool(8);
      CHECKS.forEach((name, check) -> running.execute(() -> one(name, check, collection)));
      running.shutdown();
      running.awaitTermination(120, TimeUnit.SECONDS);
    }
  }
}
