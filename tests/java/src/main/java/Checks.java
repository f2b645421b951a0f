import static com.couchbase.client.java.kv.DecrementOptions.decrementOptions;
import static com.couchbase.client.java.kv.GetAndLockOptions.getAndLockOptions;
import static com.couchbase.client.java.kv.GetOptions.getOptions;
import static com.couchbase.client.java.kv.IncrementOptions.incrementOptions;
import static com.couchbase.client.java.kv.InsertOptions.insertOptions;
import static com.couchbase.client.java.kv.LookupInSpec.count;
import static com.couchbase.client.java.kv.LookupInSpec.exists;
import static com.couchbase.client.java.kv.LookupInSpec.get;
import static com.couchbase.client.java.kv.MutateInOptions.mutateInOptions;
import static com.couchbase.client.java.kv.RemoveOptions.removeOptions;
import static com.couchbase.client.java.kv.ReplaceOptions.replaceOptions;
import static com.couchbase.client.java.kv.ScanOptions.scanOptions;
import static com.couchbase.client.java.kv.UpsertOptions.upsertOptions;
import static com.couchbase.client.java.manager.collection.CreateCollectionSettings.createCollectionSettings;
import static com.couchbase.client.java.manager.collection.UpdateCollectionSettings.updateCollectionSettings;
import static com.couchbase.client.java.transactions.config.TransactionOptions.transactionOptions;

import com.couchbase.client.core.diagnostics.EndpointDiagnostics;
import com.couchbase.client.core.diagnostics.EndpointPingReport;
import com.couchbase.client.core.diagnostics.PingResult;
import com.couchbase.client.core.diagnostics.PingState;
import com.couchbase.client.core.endpoint.EndpointState;
import com.couchbase.client.core.error.BucketExistsException;
import com.couchbase.client.core.error.BucketNotFlushableException;
import com.couchbase.client.core.error.BucketNotFoundException;
import com.couchbase.client.core.error.CasMismatchException;
import com.couchbase.client.core.error.CollectionExistsException;
import com.couchbase.client.core.error.CollectionNotFoundException;
import com.couchbase.client.core.error.CouchbaseException;
import com.couchbase.client.core.error.DocumentExistsException;
import com.couchbase.client.core.error.DocumentNotFoundException;
import com.couchbase.client.core.error.DocumentNotLockedException;
import com.couchbase.client.core.error.DocumentUnretrievableException;
import com.couchbase.client.core.error.DurabilityLevelNotAvailableException;
import com.couchbase.client.core.error.GroupNotFoundException;
import com.couchbase.client.core.error.InvalidArgumentException;
import com.couchbase.client.core.error.ScopeExistsException;
import com.couchbase.client.core.error.ScopeNotFoundException;
import com.couchbase.client.core.error.TimeoutException;
import com.couchbase.client.core.error.UserNotFoundException;
import com.couchbase.client.core.error.ValueTooLargeException;
import com.couchbase.client.core.error.subdoc.DeltaInvalidException;
import com.couchbase.client.core.error.subdoc.DocumentNotJsonException;
import com.couchbase.client.core.error.subdoc.NumberTooBigException;
import com.couchbase.client.core.error.subdoc.PathExistsException;
import com.couchbase.client.core.error.subdoc.PathInvalidException;
import com.couchbase.client.core.error.subdoc.PathMismatchException;
import com.couchbase.client.core.error.subdoc.PathNotFoundException;
import com.couchbase.client.core.error.subdoc.ValueInvalidException;
import com.couchbase.client.core.msg.kv.DurabilityLevel;
import com.couchbase.client.core.msg.kv.MutationToken;
import com.couchbase.client.core.service.ServiceType;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.ClusterOptions;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.Scope;
import com.couchbase.client.java.codec.RawBinaryTranscoder;
import com.couchbase.client.java.codec.RawStringTranscoder;
import com.couchbase.client.java.json.JsonArray;
import com.couchbase.client.java.json.JsonObject;
import com.couchbase.client.java.kv.AppendOptions;
import com.couchbase.client.java.kv.GetResult;
import com.couchbase.client.java.kv.LookupInMacro;
import com.couchbase.client.java.kv.LookupInReplicaResult;
import com.couchbase.client.java.kv.LookupInResult;
import com.couchbase.client.java.kv.MutateInMacro;
import com.couchbase.client.java.kv.MutateInOptions;
import com.couchbase.client.java.kv.MutateInResult;
import com.couchbase.client.java.kv.MutateInSpec;
import com.couchbase.client.java.kv.MutationResult;
import com.couchbase.client.java.kv.MutationState;
import com.couchbase.client.java.kv.PrependOptions;
import com.couchbase.client.java.kv.ScanOptions;
import com.couchbase.client.java.kv.ScanResult;
import com.couchbase.client.java.kv.ScanTerm;
import com.couchbase.client.java.kv.ScanType;
import com.couchbase.client.java.kv.StoreSemantics;
import com.couchbase.client.java.kv.UnlockOptions;
import com.couchbase.client.java.manager.bucket.BucketManager;
import com.couchbase.client.java.manager.bucket.BucketSettings;
import com.couchbase.client.java.manager.bucket.BucketType;
import com.couchbase.client.java.manager.bucket.EvictionPolicyType;
import com.couchbase.client.java.manager.collection.CollectionManager;
import com.couchbase.client.java.manager.collection.CollectionSpec;
import com.couchbase.client.java.manager.collection.ScopeSpec;
import com.couchbase.client.java.manager.user.AuthDomain;
import com.couchbase.client.java.manager.user.Group;
import com.couchbase.client.java.manager.user.Role;
import com.couchbase.client.java.manager.user.RoleAndOrigins;
import com.couchbase.client.java.manager.user.User;
import com.couchbase.client.java.manager.user.UserAndMetadata;
import com.couchbase.client.java.manager.user.UserManager;
import com.couchbase.client.java.transactions.TransactionAttemptContext;
import com.couchbase.client.java.transactions.TransactionGetResult;
import com.couchbase.client.java.transactions.Transactions;
import com.couchbase.client.java.transactions.error.TransactionExpiredException;
import com.couchbase.client.java.transactions.error.TransactionFailedException;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;
import java.util.stream.Collectors;
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

  private static JsonObject number(int n) {
    return JsonObject.create().put("n", n);
  }

  private static JsonObject object(String text) {
    return JsonObject.fromJson(text);
  }

  private static void holds(Collection c, String key, JsonObject document) {
    equal(c.get(key).contentAsObject(), document);
  }

  private static void within(Instant time, Instant start, int seconds) {
    Instant earliest = start.plusSeconds(seconds - 2);
    Instant latest = Instant.now().plusSeconds(seconds + 2);
    expect(!time.isBefore(earliest) && !time.isAfter(latest), time + ", not " + earliest + " to " + latest);
  }

  private static Optional<Instant> expiry(Collection c, String key) {
    return c.get(key, getOptions().withExpiry(true)).expiryTime();
  }

  private static MutateInResult mutate(Collection c, String key, MutateInSpec... specs) {
    return c.mutateIn(key, List.of(specs));
  }

  private static MutateInResult mutate(Collection c, String key, MutateInOptions options, MutateInSpec... specs) {
    return c.mutateIn(key, List.of(specs), options);
  }

  /** No transaction has left anything in the document. */
  private static void unstaged(Collection c, String key) {
    expect(!c.lookupIn(key, List.of(exists("txn").xattr())).exists(0), "staged: " + key);
  }

  /** Inserts one document, replaces the second and removes the third. */
  private static void stage(TransactionAttemptContext attempt, Collection c, String inserted, String replaced, String removed) {
    TransactionGetResult one = attempt.get(c, replaced);
    TransactionGetResult other = attempt.get(c, removed);
    attempt.insert(c, inserted, number(1));
    attempt.replace(one, number(2));
    attempt.remove(other);
  }

  private static void pause(int milliseconds) {
    try {
      Thread.sleep(milliseconds);
    } catch (InterruptedException error) {
      throw new AssertionError(error);
    }
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
    CHECKS.put("insert-expiry-absolute", (c, key) -> {
      for (int seconds : new int[] {3600, 40 * 86400}) {
        Instant time = Instant.ofEpochSecond(Instant.now().getEpochSecond() + seconds);
        c.insert(key, number(1), insertOptions().expiry(time));
        equal(expiry(c, key).orElseThrow(), time);
        c.remove(key);
      }
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
    CHECKS.put("replace-expiry", (c, key) -> {
      c.upsert(key, number(1));
      Instant start = Instant.now();
      c.replace(key, number(2), replaceOptions().expiry(Duration.ofSeconds(100)));
      Instant before = expiry(c, key).orElseThrow();
      within(before, start, 100);
      c.replace(key, number(3), replaceOptions().preserveExpiry(true));
      equal(expiry(c, key).orElseThrow(), before);
      c.replace(key, number(4));
      equal(expiry(c, key), Optional.empty());
      holds(c, key, number(4));
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
    CHECKS.put("touch-zero", (c, key) -> {
      c.upsert(key, number(1), upsertOptions().expiry(Duration.ofSeconds(100)));
      expect(expiry(c, key).isPresent(), "no expiry");
      c.touch(key, Duration.ZERO);
      equal(expiry(c, key), Optional.empty());
      c.upsert(key, number(2), upsertOptions().expiry(Duration.ofSeconds(100)));
      equal(c.getAndTouch(key, Duration.ZERO).contentAsObject(), number(2));
      equal(expiry(c, key), Optional.empty());
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
    CHECKS.put("lock-errors", (c, key) -> {
      Duration time = Duration.ofSeconds(15);
      fails(() -> c.getAndLock(key, time), DocumentNotFoundException.class);
      fails(() -> c.getAndTouch(key, time), DocumentNotFoundException.class);
      fails(() -> c.unlock(key, 1), DocumentNotFoundException.class);
      long free = c.upsert(key, 1).cas();
      fails(() -> c.unlock(key, free), DocumentNotLockedException.class);
      long locked = c.getAndLock(key, time).cas();
      fails(() -> c.unlock(key, free), CasMismatchException.class);
      c.replace(key, 2, replaceOptions().cas(locked));
      GetResult again = c.getAndLock(key, time);
      equal(again.contentAs(Integer.class), 2);
      c.remove(key, removeOptions().cas(again.cas()));
      missing(c, key);
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
    CHECKS.put("decrement-creates", (c, key) -> {
      fails(() -> c.binary().decrement(key), DocumentNotFoundException.class);
      Instant start = Instant.now();
      equal(c.binary().decrement(key, decrementOptions().initial(7).expiry(Duration.ofSeconds(100))).content(), 7L);
      within(expiry(c, key).orElseThrow(), start, 100);
      equal(c.binary().decrement(key, decrementOptions().delta(2)).content(), 5L);
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
    CHECKS.put("any-replica-missing", (c, key) -> fails(() -> c.getAnyReplica(key), DocumentUnretrievableException.class));
    CHECKS.put("batch", (c, key) -> {
      List<Integer> all = IntStream.range(0, 500).boxed().toList();
      Flux.fromIterable(all).flatMap(n -> c.reactive().upsert(key + "-" + n, n)).blockLast();
      Long same = Flux.fromIterable(all).flatMap(n -> c.reactive().get(key + "-" + n).filter(read -> read.contentAs(Integer.class).equals(n))).count().block();
      equal(same, 500L);
      Flux.fromIterable(all).flatMap(n -> c.reactive().remove(key + "-" + n)).blockLast();
    });
    CHECKS.put("lookup-in", (c, key) -> {
      JsonObject document = object("{\"a\":1,\"list\":[1,2,\"x\"],\"deep\":{\"b\":{\"c\":\"grüße\"}},\"nothing\":null}");
      long cas = c.upsert(key, document).cas();
      LookupInResult read = c.lookupIn(key, List.of(
          get("deep.b.c"), get("list[-1]"), get("deep.b"), get("nothing"), exists("a"), exists("none"),
          count("list"), count(""), get("none"), get("a.b"), get("")));
      equal(read.cas(), cas);
      equal(List.of(read.contentAs(0, String.class), read.contentAs(1, String.class)), List.of("grüße", "x"));
      equal(read.contentAsObject(2), object("{\"c\":\"grüße\"}"));
      expect(read.contentAs(3, Object.class) == null, "null came back as something");
      equal(List.of(read.exists(4), read.exists(5), read.exists(8)), List.of(true, false, false));
      equal(List.of(read.contentAs(6, Integer.class), read.contentAs(7, Integer.class)), List.of(3, 4));
      fails(() -> read.contentAs(8, Integer.class), PathNotFoundException.class);
      fails(() -> read.contentAs(9, Integer.class), PathMismatchException.class);
      equal(read.contentAsObject(10), document);
      fails(() -> c.lookupIn(key + "-missing", List.of(get("a"))), DocumentNotFoundException.class);
      fails(() -> c.lookupIn(key, Collections.nCopies(17, get("a"))), InvalidArgumentException.class);
    });
    CHECKS.put("lookup-any-replica", (c, key) -> {
      long cas = c.upsert(key, number(1)).cas();
      LookupInReplicaResult found = c.lookupInAnyReplica(key, List.of(get("n"), exists("none")));
      equal(List.of(found.contentAs(0, Integer.class), found.exists(1), found.isReplica(), found.cas()), List.of(1, false, false, cas));
      List<LookupInReplicaResult> all = c.lookupInAllReplicas(key, List.of(get("n"))).toList();
      equal(all.size(), 1);
      equal(List.of(all.get(0).contentAs(0, Integer.class), all.get(0).isReplica()), List.of(1, false));
      fails(() -> c.lookupInAnyReplica(key + "-missing", List.of(get("n"))), DocumentUnretrievableException.class);
    });
    CHECKS.put("mutate-in", (c, key) -> {
      c.upsert(key, object("{\"n\":1,\"old\":\"x\",\"gone\":true,\"list\":[2]}"));
      MutateInResult changed = mutate(c, key,
          MutateInSpec.increment("counter", 5), MutateInSpec.decrement("counter", 2),
          MutateInSpec.upsert("n", 2), MutateInSpec.insert("fresh", object("{\"a\":null}")),
          MutateInSpec.replace("old", "y"), MutateInSpec.remove("gone"),
          MutateInSpec.arrayAppend("list", List.of(3)), MutateInSpec.arrayPrepend("list", List.of(1)),
          MutateInSpec.arrayInsert("list[1]", List.of(1.5)), MutateInSpec.arrayAddUnique("list", 4), MutateInSpec.arrayAppend("list", List.of(8, 9)),
          MutateInSpec.upsert("x.y.z", List.of(1)).createPath());
      equal(List.of(changed.contentAs(0, Integer.class), changed.contentAs(1, Integer.class)), List.of(5, 3));
      expect(changed.mutationToken().isPresent(), "no mutation token");
      GetResult read = c.get(key);
      equal(read.contentAsObject(), object(
          "{\"n\":2,\"old\":\"y\",\"list\":[1,1.5,2,3,4,8,9],\"fresh\":{\"a\":null},\"counter\":3,\"x\":{\"y\":{\"z\":[1]}}}"));
      equal(read.cas(), changed.cas());
      mutate(c, key, mutateInOptions().cas(changed.cas()), MutateInSpec.upsert("n", 3));
      mutate(c, key, MutateInSpec.replace("", number(7)));
      holds(c, key, number(7));
      mutate(c, key, MutateInSpec.remove(""));
      missing(c, key);
    });
    CHECKS.put("mutate-in-errors", (c, key) -> {
      JsonObject document = JsonObject.create().put("a", 1).put("list", JsonArray.from(1, "x")).put("huge", new BigInteger("100000000000000000000"));
      long old = c.upsert(key, document).cas();
      long cas = c.upsert(key, document).cas();
      Map<MutateInSpec, Class<? extends Throwable>> errors = new LinkedHashMap<>();
      errors.put(MutateInSpec.insert("a", 2), PathExistsException.class);
      errors.put(MutateInSpec.arrayAddUnique("list", 1), PathExistsException.class);
      errors.put(MutateInSpec.replace("none", 2), PathNotFoundException.class);
      errors.put(MutateInSpec.remove("none"), PathNotFoundException.class);
      errors.put(MutateInSpec.upsert("x.y", 2), PathNotFoundException.class);
      errors.put(MutateInSpec.upsert("a.b", 2), PathMismatchException.class);
      errors.put(MutateInSpec.arrayAppend("a", List.of(2)), PathMismatchException.class);
      errors.put(MutateInSpec.increment("list", 2), PathMismatchException.class);
      errors.put(MutateInSpec.upsert("a..b[", 2), PathInvalidException.class);
      errors.put(MutateInSpec.arrayAddUnique("list", number(1)), ValueInvalidException.class);
      errors.put(MutateInSpec.increment("a", 0), DeltaInvalidException.class);
      errors.put(MutateInSpec.increment("huge", 1), NumberTooBigException.class);
      errors.forEach((spec, kind) -> {
        fails(() -> mutate(c, key, spec), kind);
        fails(() -> mutate(c, key, MutateInSpec.upsert("changed", true), spec), kind);
      });
      fails(() -> mutate(c, key, mutateInOptions().cas(old), MutateInSpec.upsert("a", 2)), CasMismatchException.class);
      fails(() -> mutate(c, key + "-missing", MutateInSpec.upsert("a", 2)), DocumentNotFoundException.class);
      GetResult read = c.get(key);
      equal(read.contentAsObject(), document);
      equal(read.cas(), cas);
      c.upsert(key + "-raw", bytes("text"), upsertOptions().transcoder(RawBinaryTranscoder.INSTANCE));
      fails(() -> mutate(c, key + "-raw", MutateInSpec.upsert("a", 2)), DocumentNotJsonException.class);
    });
    CHECKS.put("mutate-in-upsert", (c, key) -> {
      MutateInOptions upsert = mutateInOptions().storeSemantics(StoreSemantics.UPSERT);
      MutateInOptions insert = mutateInOptions().storeSemantics(StoreSemantics.INSERT);
      fails(() -> mutate(c, key, MutateInSpec.upsert("n", 1)), DocumentNotFoundException.class);
      mutate(c, key, upsert, MutateInSpec.upsert("n", 1));
      mutate(c, key, upsert, MutateInSpec.increment("n", 3));
      holds(c, key, number(4));
      fails(() -> mutate(c, key, insert, MutateInSpec.upsert("n", 9)), DocumentExistsException.class);
      c.remove(key);
      mutate(c, key, insert, MutateInSpec.insert("n", 1));
      holds(c, key, number(1));
      c.remove(key);
      mutate(c, key, upsert, MutateInSpec.arrayAppend("", List.of(1)), MutateInSpec.arrayAppend("", List.of(2)));
      equal(c.get(key).contentAsArray(), JsonArray.from(1, 2));
      // Whoever may make the document may make the parents of a path.
      for (MutateInOptions options : List.of(upsert, insert)) {
        c.remove(key);
        mutate(c, key, options, MutateInSpec.upsert("x.y", 1));
        holds(c, key, object("{\"x\":{\"y\":1}}"));
      }
    });
    CHECKS.put("mutate-in-durable", (c, key) -> {
      c.upsert(key, number(1));
      MutateInOptions majority = mutateInOptions().durability(DurabilityLevel.MAJORITY);
      MutateInResult changed = mutate(c, key, majority, MutateInSpec.upsert("_x", 1).xattr(), MutateInSpec.increment("n", 1));
      equal(changed.contentAs(1, Integer.class), 2);
      for (DurabilityLevel level : List.of(DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE, DurabilityLevel.PERSIST_TO_MAJORITY)) {
        fails(() -> mutate(c, key, mutateInOptions().durability(level), MutateInSpec.increment("n", 1)), DurabilityLevelNotAvailableException.class);
      }
      holds(c, key, number(2));
    });
    CHECKS.put("mutate-in-clears-expiry", (c, key) -> {
      c.upsert(key, number(1), upsertOptions().expiry(Duration.ofSeconds(100)));
      mutate(c, key, MutateInSpec.increment("n", 1));
      equal(expiry(c, key), Optional.empty());
    });
    CHECKS.put("preserve-expiry-in-mutate", (c, key) -> {
      c.upsert(key, number(1), upsertOptions().expiry(Duration.ofSeconds(100)));
      Instant before = expiry(c, key).orElseThrow();
      mutate(c, key, mutateInOptions().preserveExpiry(true), MutateInSpec.increment("n", 1));
      equal(expiry(c, key).orElseThrow(), before);
      holds(c, key, number(2));
    });
    CHECKS.put("get-with-expiry", (c, key) -> {
      Instant start = Instant.now();
      c.upsert(key, number(1), upsertOptions().expiry(Duration.ofSeconds(100)));
      GetResult read = c.get(key, getOptions().withExpiry(true));
      equal(read.contentAsObject(), number(1));
      within(read.expiryTime().orElseThrow(), start, 100);
      mutate(c, key, mutateInOptions().expiry(Duration.ofSeconds(200)), MutateInSpec.upsert("n", 2));
      within(expiry(c, key).orElseThrow(), start, 200);
      c.upsert(key, number(3));
      equal(expiry(c, key), Optional.empty());
    });
    CHECKS.put("get-with-projection", (c, key) -> {
      JsonObject fields = JsonObject.create();
      IntStream.range(0, 20).forEach(n -> fields.put("f" + n, n));
      JsonObject document = JsonObject.from(fields.toMap()).put("deep", object("{\"b\":{\"c\":1},\"d\":2}"));
      c.upsert(key, document, upsertOptions().expiry(Duration.ofSeconds(100)));
      equal(c.get(key, getOptions().project("f1", "deep.b.c", "none")).contentAsObject(), object("{\"f1\":1,\"deep\":{\"b\":{\"c\":1}}}"));
      GetResult timed = c.get(key, getOptions().project("deep").withExpiry(true));
      equal(timed.contentAsObject(), object("{\"deep\":{\"b\":{\"c\":1},\"d\":2}}"));
      expect(timed.expiryTime().orElseThrow().isAfter(Instant.now()), "expired");
      // More paths than a request can hold are refused by the SDK.
      fails(() -> c.get(key, getOptions().project(fields.getNames())), InvalidArgumentException.class);
      equal(c.get(key, getOptions().project(new ArrayList<>(fields.getNames()).subList(0, 16))).contentAsObject().size(), 16);
      fails(() -> c.get(key + "-missing", getOptions().project("f1")), DocumentNotFoundException.class);
    });
    CHECKS.put("data-structures", (c, key) -> {
      for (String kind : List.of("-list", "-map", "-set", "-queue")) {
        if (c.exists(key + kind).exists()) {
          c.remove(key + kind);
        }
      }
      List<String> list = c.list(key + "-list", String.class);
      list.add("b");
      list.add("c");
      list.add(0, "a");
      equal(new ArrayList<>(list), List.of("a", "b", "c"));
      equal(List.of(list.get(1), list.size(), list.indexOf("c"), list.indexOf("x")), List.of("b", 3, 2, -1));
      equal(list.remove(0), "a");
      equal(list.set(0, "B"), "b");
      equal(new ArrayList<>(list), List.of("B", "c"));
      fails(() -> list.get(7), IndexOutOfBoundsException.class);
      Map<String, Integer> map = c.map(key + "-map", Integer.class);
      map.put("one", 1);
      map.put("two", 2);
      equal(List.of(map.get("two"), map.size(), map.containsKey("one"), map.containsKey("no")), List.of(2, 2, true, false));
      equal(map.remove("one"), 1);
      equal(map.keySet(), Set.of("two"));
      expect(map.get("one") == null, "a removed key");
      Set<String> set = c.set(key + "-set", String.class);
      equal(List.of(set.add("a"), set.add("b"), set.add("a")), List.of(true, true, false));
      equal(List.of(set.size(), set.contains("b"), set.contains("c"), set.remove("a")), List.of(2, true, false, true));
      equal(new ArrayList<>(set), List.of("b"));
      Queue<Integer> queue = c.queue(key + "-queue", Integer.class);
      queue.add(1);
      queue.add(2);
      equal(List.of(queue.size(), queue.peek(), queue.poll(), queue.poll(), queue.size()), List.of(2, 1, 1, 2, 0));
    });
    CHECKS.put("xattrs", (c, key) -> {
      c.upsert(key, number(1));
      long cas = mutate(c, key,
          MutateInSpec.upsert("meta.owner", "grüße").xattr().createPath(), MutateInSpec.upsert("meta.cas", MutateInMacro.CAS).xattr(),
          MutateInSpec.upsert("meta.seqno", MutateInMacro.SEQ_NO).xattr(), MutateInSpec.upsert("meta.crc", MutateInMacro.VALUE_CRC_32C).xattr()).cas();
      LookupInResult read = c.lookupIn(key, List.of(
          get("meta").xattr(), get(LookupInMacro.DOCUMENT).xattr(), exists("meta.owner").xattr(), get("meta.none").xattr(), get("n")));
      JsonObject meta = read.contentAsObject(0);
      JsonObject virtual = read.contentAsObject(1);
      equal(meta.getString("cas"), String.format("0x%016x", Long.reverseBytes(cas)));
      equal(virtual.getString("CAS"), String.format("0x%016x", cas));
      equal(List.of(meta.get("owner"), meta.get("seqno"), meta.get("crc")), List.of("grüße", virtual.get("seqno"), virtual.get("value_crc32c")));
      equal(List.of(virtual.get("deleted"), virtual.get("exptime"), virtual.get("value_bytes"), virtual.get("datatype")),
          List.of(false, 0, number(1).toBytes().length, JsonArray.from("json", "xattr")));
      expect(read.exists(2), "meta.owner does not exist");
      fails(() -> read.contentAs(3, String.class), PathNotFoundException.class);
      equal(read.contentAs(4, Integer.class), 1);
      holds(c, key, number(1));
      c.upsert(key, number(2));
      equal(c.lookupIn(key, List.of(get("meta.owner").xattr())).contentAs(0, String.class), "grüße");
      mutate(c, key, MutateInSpec.remove("meta").xattr());
      expect(!c.lookupIn(key, List.of(exists("meta").xattr())).exists(0), "meta exists");
      holds(c, key, number(2));
    });
  }

  private interface ScopeUse {
    void run(Scope scope, CollectionManager manager) throws Exception;
  }

  /** Makes a scope with the given collections, which have these maximum expiries, and drops it after the use. */
  private static void withScope(Cluster cluster, Collection c, String key, Map<String, Duration> expiries, ScopeUse use) throws Exception {
    CollectionManager manager = cluster.bucket(c.bucketName()).collections();
    String name = key.replace("::", "-");
    if (manager.getAllScopes().stream().anyMatch(one -> one.name().equals(name))) {
      manager.dropScope(name);
    }
    manager.createScope(name);
    expiries.forEach((collection, expiry) -> manager.createCollection(name, collection, createCollectionSettings().maxExpiry(expiry)));
    use.run(cluster.bucket(c.bucketName()).scope(name), manager);
    manager.dropScope(name);
  }

  private static Map<String, Duration> listed(CollectionManager manager, String scope) {
    ScopeSpec found = manager.getAllScopes().stream().filter(one -> one.name().equals(scope)).findFirst().orElseThrow();
    return found.collections().stream().collect(Collectors.toMap(CollectionSpec::name, CollectionSpec::maxExpiry));
  }

  /** 60 documents with the prefix and two without. */
  private static TreeMap<String, JsonObject> documents(String prefix) {
    TreeMap<String, JsonObject> documents = new TreeMap<>(Map.of("a", number(1), "~", number(2)));
    IntStream.range(0, 60).forEach(n -> documents.put(String.format("%s-%02d", prefix, n), number(n)));
    return documents;
  }

  /** Stores the documents, and returns the state to be consistent with. */
  private static MutationState fill(Collection c, Map<String, JsonObject> documents) {
    return MutationState.from(documents.entrySet().stream()
        .map(one -> c.upsert(one.getKey(), one.getValue()).mutationToken().orElseThrow()).toArray(MutationToken[]::new));
  }

  private static Map<String, JsonObject> scan(Collection c, ScanType kind, ScanOptions options) {
    return c.scan(kind, options).collect(Collectors.toMap(ScanResult::id, ScanResult::contentAsObject));
  }

  private static Set<String> scanIds(Collection c, ScanType kind, ScanOptions options) {
    List<ScanResult> found = c.scan(kind, options.idsOnly(true)).collect(Collectors.toList());
    expect(found.stream().allMatch(ScanResult::idOnly), "not only ids");
    Set<String> ids = found.stream().map(ScanResult::id).collect(Collectors.toSet());
    equal(ids.size(), found.size());
    return ids;
  }

  private static List<Object> facts(BucketSettings of) {
    return List.of(of.name(), of.bucketType(), of.ramQuotaMB(), of.evictionPolicy(), of.numReplicas(), of.maxExpiry(),
        of.minimumDurabilityLevel(), of.flushEnabled());
  }

  private static Map<String, Check> managementChecks(Cluster cluster) {
    Map<String, Check> checks = new LinkedHashMap<>();
    Duration brief = Duration.ofSeconds(7);
    Duration most = Duration.ofSeconds(100);
    checks.put("collection-manage", (c, key) -> withScope(cluster, c, key, Map.of("plain", Duration.ZERO, "timed", most), (s, manager) -> {
      String scope = s.name();
      String absent = scope + "-missing";
      equal(listed(manager, scope), Map.of("plain", CollectionSpec.SAME_EXPIRY_AS_BUCKET, "timed", most));
      fails(() -> manager.createScope(scope), ScopeExistsException.class);
      fails(() -> manager.createCollection(scope, "plain"), CollectionExistsException.class);
      fails(() -> manager.createCollection(absent, "plain"), ScopeNotFoundException.class);
      fails(() -> manager.createScope("_reserved"), CouchbaseException.class);
      manager.updateCollection(scope, "plain", updateCollectionSettings().maxExpiry(brief));
      manager.updateCollection(scope, "timed", updateCollectionSettings().maxExpiry(CollectionSpec.NEVER_EXPIRE));
      equal(listed(manager, scope), Map.of("plain", brief, "timed", CollectionSpec.NEVER_EXPIRE));
      fails(() -> manager.updateCollection(scope, "missing", updateCollectionSettings().maxExpiry(brief)), CollectionNotFoundException.class);
      manager.dropCollection(scope, "plain");
      equal(listed(manager, scope), Map.of("timed", CollectionSpec.NEVER_EXPIRE));
      fails(() -> manager.dropCollection(scope, "plain"), CollectionNotFoundException.class);
      fails(() -> manager.dropCollection(absent, "plain"), ScopeNotFoundException.class);
      fails(() -> manager.dropScope(absent), ScopeNotFoundException.class);
    }));
    checks.put("collection-documents", (c, key) -> withScope(cluster, c, key, Map.of("one", Duration.ZERO, "other", Duration.ZERO), (s, manager) -> {
      Collection one = s.collection("one");
      Collection other = s.collection("other");
      c.upsert(key, number(0));
      one.insert(key, number(1));
      other.insert(key, number(2));
      holds(c, key, number(0));
      holds(one, key, number(1));
      equal(mutate(one, key, MutateInSpec.increment("n", 4), MutateInSpec.upsert("more", 1)).contentAs(0, Integer.class), 5);
      equal(one.lookupIn(key, List.of(get("n"))).contentAs(0, Integer.class), 5);
      equal(one.binary().increment("counter", incrementOptions().initial(10).delta(5)).content(), 10L);
      equal(one.binary().increment("counter", incrementOptions().delta(5)).content(), 15L);
      missing(c, "counter");
      one.remove(key);
      missing(one, key);
      holds(c, key, number(0));
      holds(other, key, number(2));
      manager.dropCollection(s.name(), "one");
      Duration quick = Duration.ofSeconds(2);
      fails(() -> one.get("counter", getOptions().timeout(quick)), CollectionNotFoundException.class, TimeoutException.class);
      fails(() -> one.upsert(key, 1, upsertOptions().timeout(quick)), CollectionNotFoundException.class, TimeoutException.class);
      // The new collection of that name has none of the old documents.
      manager.createCollection(s.name(), "one");
      missing(one, "counter");
      one.upsert(key, number(3));
      holds(one, key, number(3));
      holds(other, key, number(2));
    }));
    checks.put("key-too-long", (c, key) -> withScope(cluster, c, key, Map.of("one", Duration.ZERO), (s, manager) -> {
      // Its bytes count, not its characters. The SDK refuses more than 250 with the prefix of the collection, which is 1 byte here.
      String longest = "ü".repeat(124) + "k";
      c.upsert(longest, number(1));
      fails(() -> c.upsert(longest + "kk", number(2)), InvalidArgumentException.class);
      holds(c, longest, number(1));
      Collection one = s.collection("one");
      String longestInOne = "ü".repeat(123);
      one.upsert(longestInOne, number(1));
      fails(() -> one.upsert(longestInOne + "k", number(2)), ValueTooLargeException.class);
      holds(one, longestInOne, number(1));
    }));
    checks.put("collection-max-expiry", (c, key) -> withScope(cluster, c, key, Map.of("timed", most), (s, manager) -> {
      Collection timed = s.collection("timed");
      for (int[] asked : new int[][] {{0, 100}, {50, 50}, {900, 100}}) {
        Instant start = Instant.now();
        timed.upsert(key, number(1), upsertOptions().expiry(Duration.ofSeconds(asked[0])));
        within(expiry(timed, key).orElseThrow(), start, asked[1]);
      }
      c.upsert(key, number(1));
      equal(expiry(c, key), Optional.empty());
    }));
    checks.put("scan-range", (c, key) -> withScope(cluster, c, key, Map.of("scanned", Duration.ZERO, "other", Duration.ZERO), (s, manager) -> {
      Collection scanned = s.collection("scanned");
      TreeMap<String, JsonObject> all = documents(key);
      MutationState state = fill(scanned, all);
      fill(s.collection("other"), documents("other"));
      String first = key + "-00";
      String last = key + "-59";
      Map<String, JsonObject> documents = all.subMap(first, true, last, true);
      equal(scan(scanned, ScanType.prefixScan(key + "-"), scanOptions().consistentWith(state)), documents);
      equal(scan(scanned, ScanType.rangeScan(ScanTerm.inclusive(first), ScanTerm.inclusive(last)), scanOptions().consistentWith(state)), documents);
      ScanType part = ScanType.rangeScan(ScanTerm.exclusive(key + "-10"), ScanTerm.inclusive(key + "-20"));
      equal(scanIds(scanned, part, scanOptions()), all.subMap(key + "-10", false, key + "-20", true).keySet());
      equal(scan(scanned, ScanType.rangeScan(null, null), scanOptions()), all);
      equal(scanIds(scanned, ScanType.prefixScan("none"), scanOptions()), Set.of());
      ScanResult one = scanned.scan(ScanType.prefixScan(first)).findFirst().orElseThrow();
      equal(one.cas(), scanned.get(first).cas());
    }));
    checks.put("scan-sampling", (c, key) -> withScope(cluster, c, key, Map.of("scanned", Duration.ZERO), (s, manager) -> {
      Collection scanned = s.collection("scanned");
      Map<String, JsonObject> documents = documents(key);
      fill(scanned, documents);
      Map<String, JsonObject> some = scan(scanned, ScanType.samplingScan(20), scanOptions());
      equal(some.size(), 20);
      some.forEach((id, document) -> equal(document, documents.get(id)));
      Set<String> more = scanIds(scanned, ScanType.samplingScan(20, 7), scanOptions());
      expect(more.size() == 20 && documents.keySet().containsAll(more), String.valueOf(more));
      fails(() -> scan(scanned, ScanType.samplingScan(0), scanOptions()), InvalidArgumentException.class);
    }));
    checks.put("bucket-settings", (c, key) -> {
      BucketManager manager = cluster.buckets();
      String name = "java-settings";
      if (manager.getAllBuckets().containsKey(name)) {
        manager.dropBucket(name);
      }
      BucketSettings settings = BucketSettings.create(name).bucketType(BucketType.EPHEMERAL).ramQuotaMB(100)
          .evictionPolicy(EvictionPolicyType.NO_EVICTION).numReplicas(0).maxExpiry(most)
          .minimumDurabilityLevel(DurabilityLevel.MAJORITY).flushEnabled(false);
      manager.createBucket(settings);
      equal(facts(manager.getBucket(name)), facts(settings));
      fails(() -> manager.createBucket(settings), BucketExistsException.class);
      Collection documents = cluster.bucket(name).defaultCollection();
      Instant start = Instant.now();
      documents.upsert(key, number(1));
      within(expiry(documents, key).orElseThrow(), start, 100);
      fails(() -> manager.flushBucket(name), BucketNotFlushableException.class);
      holds(documents, key, number(1));
      // The SDK does not send the level NONE.
      settings.ramQuotaMB(120).maxExpiry(Duration.ofSeconds(200)).flushEnabled(true);
      manager.updateBucket(settings);
      equal(facts(manager.getBucket(name)), facts(settings));
      manager.flushBucket(name);
      missing(documents, key);
      BucketSettings refused = BucketSettings.create(name + "-refused").bucketType(BucketType.EPHEMERAL).ramQuotaMB(100)
          .minimumDurabilityLevel(DurabilityLevel.PERSIST_TO_MAJORITY);
      fails(() -> manager.createBucket(refused), CouchbaseException.class);
      expect(!manager.getAllBuckets().containsKey(refused.name()), "a refused bucket exists");
      manager.dropBucket(name);
      fails(() -> manager.getBucket(name), BucketNotFoundException.class);
      fails(() -> manager.dropBucket(name), BucketNotFoundException.class);
      fails(() -> manager.flushBucket(name), BucketNotFoundException.class);
    });
    checks.put("persistent-bucket", (c, key) -> {
      BucketManager manager = cluster.buckets();
      String name = "java-persistent";
      if (manager.getAllBuckets().containsKey(name)) {
        manager.dropBucket(name);
      }
      manager.createBucket(BucketSettings.create(name).bucketType(BucketType.COUCHBASE).ramQuotaMB(100)
          .evictionPolicy(EvictionPolicyType.VALUE_ONLY).numReplicas(0));
      Collection documents = cluster.bucket(name).defaultCollection();
      documents.upsert(key, number(1), upsertOptions().durability(DurabilityLevel.PERSIST_TO_MAJORITY));
      holds(documents, key, number(1));
      equal(manager.getAllBuckets().get(name).bucketType(), BucketType.COUCHBASE);
      manager.dropBucket(name);
      fails(() -> manager.getBucket(name), BucketNotFoundException.class);
    });
    return checks;
  }

  /** Opens a cluster as another user. */
  private interface Login {
    Cluster as(String user, String password);
  }

  /** The roles of a user, each with where it comes from. */
  private static Map<Role, List<String>> origins(UserManager manager, String name) {
    return manager.getUser(AuthDomain.LOCAL, name).effectiveRolesAndOrigins().stream().collect(Collectors.toMap(
        RoleAndOrigins::role, one -> one.origins().stream().map(origin -> origin.name().map(group -> origin.type() + " " + group).orElse(origin.type())).toList()));
  }

  /** The SDK has no exception of its own for the status of a document that may not be used, and for a form that is refused. */
  private static void refused(Step step, String word) {
    String told = String.valueOf(fails(step, CouchbaseException.class));
    expect(told.contains(word), told);
  }

  private static Map<String, Check> userChecks(Cluster cluster, String bucket, Login login) {
    Map<String, Check> checks = new LinkedHashMap<>();
    UserManager manager = cluster.users();
    String password = "correct-horse-battery";
    Role reader = new Role("data_reader", bucket);
    Role writer = new Role("data_writer", bucket);
    checks.put("user-manage", (c, key) -> {
      String name = key.replace("::", "-");
      fails(() -> manager.getUser(AuthDomain.LOCAL, name), UserNotFoundException.class);
      Role scoped = new Role("data_writer", bucket, "_default", "*");
      manager.upsertUser(new User(name).displayName("Grüße").password(password).roles(reader, scoped));
      UserAndMetadata made = manager.getUser(AuthDomain.LOCAL, name);
      equal(List.of(made.domain(), made.user().username(), made.user().displayName(), made.user().groups()), List.of(AuthDomain.LOCAL, name, "Grüße", Set.of()));
      expect(made.passwordChanged().isPresent(), "no date of the password");
      equal(made.innateRoles(), Set.of(reader, scoped));
      equal(origins(manager, name), Map.of(reader, List.of("user"), scoped, List.of("user")));
      Set<String> listed = manager.getAllUsers().stream().map(one -> one.user().username()).collect(Collectors.toSet());
      expect(listed.contains(name) && !listed.contains("Administrator"), String.valueOf(listed));
      manager.upsertUser(new User(name).roles(new Role("ro_admin")));
      equal(manager.getUser(AuthDomain.LOCAL, name).effectiveRoles(), Set.of(new Role("ro_admin")));
      Set<String> known = manager.getRoles().stream().map(one -> one.role().name()).collect(Collectors.toSet());
      expect(known.containsAll(List.of("admin", "bucket_admin", "data_reader", "data_writer")), String.valueOf(known));
      refused(() -> manager.upsertUser(new User(name).roles(new Role("superman"))), "superman");
      refused(() -> manager.upsertUser(new User(name).password("short").roles(reader)), "password");
      refused(() -> manager.upsertUser(new User("Administrator").password(password).roles(reader)), "configuration");
      manager.dropUser(name);
      fails(() -> manager.getUser(AuthDomain.LOCAL, name), UserNotFoundException.class);
      fails(() -> manager.dropUser(name), UserNotFoundException.class);
    });
    checks.put("group-manage", (c, key) -> {
      String name = key.replace("::", "-");
      fails(() -> manager.getGroup(name), GroupNotFoundException.class);
      manager.upsertGroup(new Group(name).description("readers").roles(reader).ldapGroupReference("cn=readers"));
      Group made = manager.getGroup(name);
      equal(List.of(made.name(), made.description(), made.roles(), made.ldapGroupReference()), List.of(name, "readers", Set.of(reader), Optional.of("cn=readers")));
      expect(manager.getAllGroups().stream().anyMatch(one -> one.name().equals(name)), "not listed");
      refused(() -> manager.upsertUser(new User(name).password(password).groups(name + "-missing")), "-missing");
      manager.upsertUser(new User(name).password(password).groups(name).roles(reader, writer));
      equal(manager.getUser(AuthDomain.LOCAL, name).user().groups(), Set.of(name));
      equal(origins(manager, name), Map.of(reader, List.of("user", "group " + name), writer, List.of("user")));
      refused(() -> manager.upsertGroup(new Group(name).roles(new Role("superman"))), "superman");
      manager.dropGroup(name);
      fails(() -> manager.getGroup(name), GroupNotFoundException.class);
      fails(() -> manager.dropGroup(name), GroupNotFoundException.class);
      equal(origins(manager, name), Map.of(reader, List.of("user"), writer, List.of("user")));
      manager.dropUser(name);
    });
    checks.put("role-enforced", (c, key) -> {
      String name = key.replace("::", "-");
      c.upsert(key, number(1));
      manager.upsertUser(new User(name).password(password).roles(reader));
      Cluster own = login.as(name, password);
      own.bucket(bucket).waitUntilReady(PATIENT);
      Collection documents = own.bucket(bucket).defaultCollection();
      holds(documents, key, number(1));
      refused(() -> documents.upsert(key, number(2)), "NO_ACCESS");
      refused(() -> mutate(documents, key, MutateInSpec.upsert("n", 2)), "NO_ACCESS");
      refused(() -> documents.lookupIn(key, List.of(get("_system").xattr())), "NO_ACCESS");
      refused(() -> own.users().getAllUsers(), "403");
      holds(c, key, number(1));
      manager.upsertUser(new User(name).roles(writer));
      documents.upsert(key, number(3));
      refused(() -> documents.get(key), "NO_ACCESS");
      holds(c, key, number(3));
      manager.dropUser(name);
      refused(() -> documents.upsert(key, number(4)), "NO_ACCESS");
      holds(c, key, number(3));
      own.close();
    });
    checks.put("change-password", (c, key) -> {
      String name = key.replace("::", "-");
      String changed = password + "-changed";
      c.upsert(key, number(1));
      manager.upsertUser(new User(name).password(password).roles(reader));
      Cluster old = login.as(name, password);
      old.bucket(bucket).waitUntilReady(PATIENT);
      old.users().changePassword(changed);
      refused(() -> old.users().changePassword("never-set"), "401");
      old.close();
      Cluster own = login.as(name, changed);
      own.bucket(bucket).waitUntilReady(PATIENT);
      holds(own.bucket(bucket).defaultCollection(), key, number(1));
      own.close();
      manager.dropUser(name);
    });
    return checks;
  }

  private static void answers(PingResult pinged) {
    expect(pinged.endpoints().values().stream().flatMap(List::stream).map(EndpointPingReport::state).allMatch(PingState.OK::equals), String.valueOf(pinged));
  }

  /** On a connection of its own: the buckets of other checks come and go. */
  private static void ping(Cluster own, String bucket) {
    own.bucket(bucket).waitUntilReady(PATIENT);
    PingResult pinged = own.bucket(bucket).ping();
    answers(pinged);
    expect(pinged.endpoints().containsKey(ServiceType.KV), String.valueOf(pinged));
    answers(own.ping());
    // The SDK does not ping the management service, but knows its connection.
    own.buckets().getBucket(bucket);
    Map<ServiceType, List<EndpointDiagnostics>> known = own.diagnostics().endpoints();
    for (ServiceType service : List.of(ServiceType.KV, ServiceType.MANAGER)) {
      expect(known.getOrDefault(service, List.of()).stream().anyMatch(one -> one.state() == EndpointState.CONNECTED), service + ": " + known);
    }
    own.close();
  }

  private static Map<String, Check> transactionChecks(Transactions transactions) {
    Map<String, Check> checks = new LinkedHashMap<>();
    checks.put("transaction-commit", (c, key) -> {
      String replaced = key + "-replaced";
      String removed = key + "-removed";
      c.upsert(replaced, number(1));
      c.upsert(removed, number(1));
      expect(transactions.run(attempt -> {
        stage(attempt, c, key, replaced, removed);
        equal(attempt.get(c, key).contentAsObject(), number(1));
        equal(attempt.get(c, replaced).contentAsObject(), number(2));
        fails(() -> attempt.get(c, removed), DocumentNotFoundException.class);
        missing(c, key);
        holds(c, replaced, number(1));
        holds(c, removed, number(1));
      }).unstagingComplete(), "unstaging is not complete");
      holds(c, key, number(1));
      holds(c, replaced, number(2));
      missing(c, removed);
      unstaged(c, key);
      unstaged(c, replaced);
    });
    checks.put("transaction-rollback", (c, key) -> {
      String replaced = key + "-replaced";
      String removed = key + "-removed";
      c.upsert(replaced, number(1));
      c.upsert(removed, number(1));
      RuntimeException wanted = new RuntimeException("rollback wanted");
      Throwable error = fails(() -> transactions.run(attempt -> {
        stage(attempt, c, key, replaced, removed);
        throw wanted;
      }), TransactionFailedException.class);
      equal(error.getCause(), wanted);
      missing(c, key);
      holds(c, replaced, number(1));
      holds(c, removed, number(1));
      unstaged(c, replaced);
      unstaged(c, removed);
      c.insert(key, number(3));
      Throwable existing = fails(() -> transactions.run(attempt -> attempt.insert(c, key, number(4))), TransactionFailedException.class);
      expect(existing.getCause() instanceof DocumentExistsException, existing.getCause() + " is the cause");
      holds(c, key, number(3));
    });
    checks.put("transaction-several-changes", (c, key) -> {
      String inserted = key + "-inserted";
      String replaced = key + "-replaced";
      String removed = key + "-removed";
      if (c.exists(inserted).exists()) {
        c.remove(inserted);
      }
      c.upsert(replaced, number(1));
      c.upsert(removed, number(1));
      transactions.run(attempt -> {
        attempt.replace(attempt.replace(attempt.get(c, replaced), number(2)), number(3));
        attempt.remove(attempt.get(c, removed));
        attempt.insert(c, removed, number(4));
        attempt.remove(attempt.insert(c, key, number(5)));
        attempt.replace(attempt.insert(c, inserted, number(6)), number(7));
      });
      holds(c, inserted, number(7));
      holds(c, replaced, number(3));
      holds(c, removed, number(4));
      missing(c, key);
      for (String one : List.of(inserted, replaced, removed)) {
        unstaged(c, one);
      }
    });
    checks.put("transaction-conflict", (c, key) -> {
      int rounds = 10;
      c.upsert(key, number(0));
      Runnable writer = () -> {
        for (int round = 0; round < rounds; round++) {
          transactions.run(attempt -> {
            TransactionGetResult read = attempt.get(c, key);
            attempt.replace(read, number(read.contentAsObject().getInt("n") + 1));
          });
        }
      };
      CompletableFuture<Void> other = CompletableFuture.runAsync(writer);
      writer.run();
      other.get();
      holds(c, key, number(2 * rounds));
      unstaged(c, key);
    });
    checks.put("transaction-expired", (c, key) -> {
      String replaced = key + "-replaced";
      c.upsert(replaced, number(1));
      fails(() -> transactions.run(attempt -> {
        TransactionGetResult read = attempt.get(c, replaced);
        attempt.insert(c, key, number(1));
        attempt.replace(read, number(2));
        pause(1500);
      }, transactionOptions().timeout(Duration.ofSeconds(1))), TransactionExpiredException.class);
      missing(c, key);
      holds(c, replaced, number(1));
      c.insert(key, number(2));
    });
    return checks;
  }

  private static void say(String name, Throwable error) {
    synchronized (System.out) {
      System.out.println(error == null ? "ok " + name : "not ok " + name + ": " + String.valueOf(error).replace('\n', ' '));
    }
  }

  private static boolean done(String name, Step step) {
    try {
      step.run();
      say(name, null);
      return true;
    } catch (Throwable error) {
      say(name, error);
      return false;
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
    Login login = (user, password) -> Cluster.connect(arguments[0], ClusterOptions.clusterOptions(user, password)
        .environment(env -> {
          env.timeoutConfig(t -> t.kvTimeout(Duration.ofSeconds(8)).kvDurableTimeout(Duration.ofSeconds(8)).connectTimeout(Duration.ofSeconds(10)));
          if (arguments.length > 4) {
            env.securityConfig(s -> s.trustCertificate(Path.of(arguments[4])));
          }
        }));
    Cluster cluster = login.as(arguments[1], arguments[2]);
    if (done("connect", () -> cluster.bucket(arguments[3]).waitUntilReady(Duration.ofSeconds(20)))) {
      Collection collection = cluster.bucket(arguments[3]).defaultCollection();
      ExecutorService running = Executors.newFixedThreadPool(8);
      CHECKS.put("ping", (c, key) -> ping(login.as(arguments[1], arguments[2]), arguments[3]));
      CHECKS.putAll(managementChecks(cluster));
      CHECKS.putAll(userChecks(cluster, arguments[3], login));
      CHECKS.putAll(transactionChecks(cluster.transactions()));
      CHECKS.forEach((name, check) -> running.execute(() -> one(name, check, collection)));
      running.shutdown();
      running.awaitTermination(120, TimeUnit.SECONDS);
    }
    done("close", cluster::close);
    System.exit(0);
  }
}
