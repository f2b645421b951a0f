// Follows a bucket with the DCP client for Java, as the connectors for Kafka and Elasticsearch do.
//
//   Follow ADDRESS USER PASSWORD BUCKET CHECKPOINT HALT PERSISTED_MS AUTHORITY [SCOPE.COLLECTION ...]
//
// Goes on from the checkpoint to what was the newest change when it began, or stops in the middle after HALT changes if
// that is not 0, and writes a new checkpoint: documents and places. PERSISTED_MS: how often the client asks what is
// persisted, and shows nothing else; 0: it shows all. AUTHORITY: whose certificates it trusts, for TLS; `-`: no TLS.
// Prints what it saw, a line each: `COUNT NAME`, and failures.

import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.config.CompressionMode;
import com.couchbase.client.dcp.config.DcpControl;
import com.couchbase.client.dcp.highlevel.CollectionCreated;
import com.couchbase.client.dcp.highlevel.CollectionDropped;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.DocumentChange;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.Rollback;
import com.couchbase.client.dcp.highlevel.ScopeCreated;
import com.couchbase.client.dcp.highlevel.ScopeDropped;
import com.couchbase.client.dcp.highlevel.SeqnoAdvanced;
import com.couchbase.client.dcp.highlevel.SnapshotMarker;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import com.couchbase.client.dcp.highlevel.StreamOffset;
import com.couchbase.client.dcp.message.DcpSystemEvent;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;

public final class Follow {
  private static final int BUFFER_BYTES = 64 << 10;
  private static final long DEADLINE_MS = 60_000;

  /** What is known of a vBucket. */
  private static final class Place {
    /** From where to go on. */
    StreamOffset offset = StreamOffset.ZERO;
    /** The newest change that was seen; there may be events about collections behind the offset. */
    long seqno;
    /** By `COLLECTION-KEY`. */
    final Map<String, String> documents = new TreeMap<>();
  }

  private final Map<Integer, Place> places = new HashMap<>();
  private final Map<String, Long> counts = new TreeMap<>();
  private final List<String> failures = new ArrayList<>();
  /** The checkpoint is there: what comes is not in it. */
  private boolean isWritten;

  private Place place(int vbucket) {
    return places.computeIfAbsent(vbucket, number -> new Place());
  }

  private void count(String name) {
    counts.merge(name, 1L, Long::sum);
  }

  private void read(Path checkpoint) throws Exception {
    for (String line : Files.readAllLines(checkpoint)) {
      String[] words = line.split(" ", -1);
      Place place = place(Integer.parseInt(words[1]));
      if (words[0].equals("place")) {
        long[] n = Arrays.stream(words).skip(2).mapToLong(Long::parseLong).toArray();
        place.offset = new StreamOffset(n[0], n[1], new SnapshotMarker(n[2], n[3]), n[4]);
        place.seqno = n[1];
      } else {
        place.documents.put(words[2], words[3]);
      }
    }
  }

  private void write(Path checkpoint) throws Exception {
    List<String> lines = new ArrayList<>();
    places.forEach((vbucket, place) -> {
      StreamOffset at = place.offset;
      lines.add("place " + vbucket + " " + at.getVbuuid() + " " + at.getSeqno() + " " + at.getSnapshot().getStartSeqno()
          + " " + at.getSnapshot().getEndSeqno() + " " + at.getCollectionsManifestUid());
      place.documents.forEach((key, value) -> lines.add("document " + vbucket + " " + key + " " + value));
    });
    Files.write(checkpoint, lines);
  }

  /** What the client tells, on a thread of its own. */
  private final class Listener implements DatabaseChangeListener {
    private final long halt;
    private long changes;

    Listener(long halt) {
      this.halt = halt;
    }

    private boolean isOver() {
      return isWritten || halt > 0 && changes >= halt;
    }

    private void change(DocumentChange change, String name, String value) {
      synchronized (Follow.this) {
        if (isOver()) {
          return;
        }
        count(name);
        changes++;
        Place place = place(change.getVbucket());
        String key = change.getCollection().id() + "-" + change.getKey();
        if (value == null) {
          place.documents.remove(key);
        } else {
          place.documents.put(key, value);
        }
        place.offset = change.getOffset();
        seen(place, change.getOffset().getSeqno());
      }
    }

    private void seen(Place place, long seqno) {
      place.seqno = Math.max(place.seqno, seqno);
      Follow.this.notifyAll();
    }

    private Place event(String name, DcpSystemEvent event) {
      Place place = place(event.getVbucket());
      if (!isOver()) {
        count(name);
        seen(place, event.getSeqno());
      }
      return place;
    }

    @Override
    public void onMutation(Mutation mutation) {
      String name = mutation.getXattrs().isEmpty() ? "mutations" : "mutations with attributes";
      change(mutation, name, Base64.getEncoder().encodeToString(mutation.getContent()));
    }

    @Override
    public void onDeletion(Deletion deletion) {
      change(deletion, deletion.isDueToExpiration() ? "expirations" : "deletions", null);
    }

    @Override
    public void onSeqnoAdvanced(SeqnoAdvanced advanced) {
      synchronized (Follow.this) {
        count("advances");
        if (!isOver()) {
          Place place = place(advanced.getVbucket());
          place.offset = advanced.getOffset();
          seen(place, advanced.getOffset().getSeqno());
        }
      }
    }

    @Override
    public void onScopeCreated(ScopeCreated event) {
      synchronized (Follow.this) {
        event("scopes created", event);
      }
    }

    @Override
    public void onScopeDropped(ScopeDropped event) {
      synchronized (Follow.this) {
        event("scopes dropped", event);
      }
    }

    @Override
    public void onCollectionCreated(CollectionCreated event) {
      synchronized (Follow.this) {
        event("collections created", event);
      }
    }

    @Override
    public void onCollectionDropped(CollectionDropped event) {
      synchronized (Follow.this) {
        Place place = event("collections dropped", event);
        place.documents.keySet().removeIf(key -> key.startsWith(event.getCollectionId() + "-"));
      }
    }

    @Override
    public void onRollback(Rollback rollback) {
      synchronized (Follow.this) {
        count("rollbacks");
        if (rollback.getSeqno() != 0) {
          failures.add("a rollback to " + rollback.getSeqno());
        }
        places.put(rollback.getVbucket(), new Place());
      }
      rollback.resume();
    }

    @Override
    public void onFailure(StreamFailure failure) {
      synchronized (Follow.this) {
        failures.add(String.valueOf(failure.getCause()));
        Follow.this.notifyAll();
      }
    }
  }

  private void run(String[] arguments) throws Exception {
    Path checkpoint = Path.of(arguments[4]);
    long persistedMs = Long.parseLong(arguments[6]);
    String[] collections = Arrays.copyOfRange(arguments, 8, arguments.length);
    if (Files.exists(checkpoint)) {
      read(checkpoint);
    }
    Client.Builder builder = Client.builder()
        .connectionString(arguments[0])
        .credentials(arguments[1], arguments[2])
        .bucket(arguments[3])
        .collectionsAware(true)
        .xattrs(true)
        .compression(CompressionMode.FORCED)
        .controlParam(DcpControl.Names.ENABLE_EXPIRY_OPCODE, true)
        .flowControl(BUFFER_BYTES);
    if (!arguments[7].equals("-")) {
      builder.securityConfig(security -> security.enableTls(true).trustCertificate(Path.of(arguments[7])));
    }
    if (persistedMs > 0) {
      builder.mitigateRollbacks(persistedMs, TimeUnit.MILLISECONDS);
    }
    if (collections.length > 0) {
      builder.collectionNames(collections);
    }
    try (Client client = builder.build()) {
      Listener listener = new Listener(Long.parseLong(arguments[5]));
      client.listener(listener, FlowControlMode.AUTOMATIC);
      client.connect().block(Duration.ofSeconds(30));
      Map<Integer, Long> ends = new HashMap<>();
      client.getSeqnos().collectList().block(Duration.ofSeconds(30))
          .forEach(one -> ends.put(one.partition(), one.seqno()));
      counts.put("partitions", (long) client.numPartitions());
      Map<Integer, StreamOffset> offsets = new HashMap<>();
      for (int vbucket = 0; vbucket < client.numPartitions(); vbucket++) {
        offsets.put(vbucket, place(vbucket).offset);
      }
      client.resumeStreaming(offsets).block(Duration.ofSeconds(30));
      long deadline = System.currentTimeMillis() + DEADLINE_MS;
      synchronized (this) {
        while (failures.isEmpty() && !listener.isOver() && behind(ends) > 0) {
          long left = deadline - System.currentTimeMillis();
          if (left <= 0) {
            failures.add("no more changes; vBuckets behind: " + behind(ends));
            break;
          }
          wait(left);
        }
        counts.put("behind", behind(ends));
        write(checkpoint);
        isWritten = true;
      }
    }
  }

  private long behind(Map<Integer, Long> ends) {
    return ends.entrySet().stream().filter(end -> place(end.getKey()).seqno < end.getValue()).count();
  }

  public static void main(String[] arguments) throws Exception {
    Follow follow = new Follow();
    follow.run(arguments);
    follow.counts.forEach((name, count) -> System.out.println(count + " " + name));
    follow.failures.forEach(failure -> System.err.println(failure.replace('\n', ' ')));
    System.exit(follow.failures.isEmpty() ? 0 : 1);
  }
}
