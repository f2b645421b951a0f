// Follows a bucket from its checkpoint to what is there now, and writes the next checkpoint.
// usage: stream [-unordered] CONNECTION USER PASSWORD BUCKET CHECKPOINT [HALT]
//
// The checkpoint holds, for each vBucket, where the stream is and what documents there are. With HALT the program stops
// after this many events, wherever the streams are then. With -unordered it takes snapshots in no order.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const (
	vbuckets = 1024
	timeout  = 60 * time.Second
)

// Place is where the stream of a vBucket is, and what it has brought.
type Place struct {
	UUID, Seqno, Start, End uint64
	Documents               map[string]string
	// A snapshot in no order comes.
	unordered bool
}

type follower struct {
	mu         sync.Mutex
	places     []Place
	left       map[uint16]bool
	done       chan struct{}
	rolledBack int
	unordered  int
	events     atomic.Int64
	halt       int64
	stopped    atomic.Bool
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func (f *follower) stop() {
	if !f.stopped.Swap(true) {
		close(f.done)
	}
}

// note applies an event; after a halt nothing counts any more.
func (f *follower) note(vb uint16, seqno uint64, apply func(place *Place)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped.Load() {
		return
	}
	place := &f.places[vb]
	if place.unordered {
		place.Seqno = max(place.Seqno, seqno)
	} else if seqno <= place.Seqno || seqno > place.End {
		log.Fatalf("vBucket %d: seqno %d after %d in the snapshot %d-%d", vb, seqno, place.Seqno, place.Start, place.End)
	} else {
		place.Seqno = seqno
	}
	apply(place)
	if f.events.Add(1) == f.halt {
		f.stop()
	}
}

func (f *follower) SnapshotMarker(marker gocbcore.DcpSnapshotMarker) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stopped.Load() {
		f.places[marker.VbID].Start, f.places[marker.VbID].End = marker.StartSeqNo, marker.EndSeqNo
	}
}

func (f *follower) Mutation(m gocbcore.DcpMutation) {
	name := fmt.Sprintf("%d/%s", m.CollectionID, m.Key)
	f.note(m.VbID, m.SeqNo, func(place *Place) { place.Documents[name] = string(m.Value) })
}

func (f *follower) Deletion(d gocbcore.DcpDeletion) {
	name := fmt.Sprintf("%d/%s", d.CollectionID, d.Key)
	f.note(d.VbID, d.SeqNo, func(place *Place) { delete(place.Documents, name) })
}

func (f *follower) Expiration(e gocbcore.DcpExpiration) {
	name := fmt.Sprintf("%d/%s", e.CollectionID, e.Key)
	f.note(e.VbID, e.SeqNo, func(place *Place) { delete(place.Documents, name) })
}

func (f *follower) SeqNoAdvanced(a gocbcore.DcpSeqNoAdvanced) {
	f.note(a.VbID, a.SeqNo, func(*Place) {})
}

func (f *follower) End(end gocbcore.DcpStreamEnd, err error) {
	if f.stopped.Load() {
		return
	}
	if err != nil {
		log.Fatalf("vBucket %d: %v", end.VbID, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.left, end.VbID)
	if len(f.left) == 0 {
		f.stop()
	}
}

func (f *follower) CreateCollection(gocbcore.DcpCollectionCreation)     {}
func (f *follower) DeleteCollection(gocbcore.DcpCollectionDeletion)     {}
func (f *follower) FlushCollection(gocbcore.DcpCollectionFlush)         {}
func (f *follower) CreateScope(gocbcore.DcpScopeCreation)               {}
func (f *follower) DeleteScope(gocbcore.DcpScopeDeletion)               {}
func (f *follower) ModifyCollection(gocbcore.DcpCollectionModification) {}

func (f *follower) OSOSnapshot(snapshot gocbcore.DcpOSOSnapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped.Load() {
		return
	}
	place := &f.places[snapshot.VbID]
	begins := snapshot.SnapshotType == 1
	if begins == place.unordered || begins && place.Seqno > 0 {
		log.Fatalf("vBucket %d: a snapshot of type %d at seqno %d", snapshot.VbID, snapshot.SnapshotType, place.Seqno)
	}
	place.unordered = begins
	if begins {
		f.unordered++
	} else {
		place.Start, place.End = place.Seqno, place.Seqno
	}
}

// open begins a vBucket's stream where its place is; if the node says so, further back.
func (f *follower) open(agent *gocbcore.DCPAgent, vb uint16, until gocbcore.SeqNo) {
	for {
		f.mu.Lock()
		place := f.places[vb]
		f.mu.Unlock()
		result := make(chan error, 1)
		opened := func(log []gocbcore.FailoverEntry, err error) {
			if err == nil {
				f.mu.Lock()
				f.places[vb].UUID = uint64(log[0].VbUUID)
				f.mu.Unlock()
			}
			result <- err
		}
		options := gocbcore.OpenStreamOptions{}
		_, err := agent.OpenStream(vb, memd.DcpStreamAddFlagActiveOnly, gocbcore.VbUUID(place.UUID), gocbcore.SeqNo(place.Seqno), until,
			gocbcore.SeqNo(place.Start), gocbcore.SeqNo(place.End), f, options, opened)
		must(err)
		err = <-result
		var rollback gocbcore.DCPRollbackError
		if errors.As(err, &rollback) {
			if rollback.SeqNo != 0 {
				log.Fatalf("vBucket %d: a rollback to %d", vb, rollback.SeqNo)
			}
			f.mu.Lock()
			f.rolledBack++
			f.places[vb] = Place{Documents: map[string]string{}}
			f.mu.Unlock()
			continue
		}
		must(err)
		return
	}
}

func main() {
	unordered := os.Args[1] == "-unordered"
	if unordered {
		os.Args = os.Args[1:]
	}
	f := &follower{places: make([]Place, vbuckets), left: map[uint16]bool{}, done: make(chan struct{}), halt: -1}
	for vb := range f.places {
		f.places[vb].Documents = map[string]string{}
	}
	if text, err := os.ReadFile(os.Args[5]); err == nil {
		must(json.Unmarshal(text, &f.places))
	}
	if len(os.Args) > 6 {
		halt, err := strconv.ParseInt(os.Args[6], 10, 64)
		must(err)
		f.halt = halt
	}
	config := gocbcore.DCPAgentConfig{}
	must(config.FromConnStr(os.Args[1]))
	config.BucketName = os.Args[4]
	config.IoConfig.UseCollections = true
	config.SecurityConfig.Auth = gocbcore.PasswordAuthProvider{Username: os.Args[2], Password: os.Args[3]}
	config.DCPConfig.BufferSize = 1 << 20
	config.DCPConfig.UseOSOBackfill = unordered
	agent, err := gocbcore.CreateDcpAgent(&config, "dormouse-test", memd.DcpOpenFlagProducer)
	must(err)
	ready := make(chan error, 1)
	_, err = agent.WaitUntilReady(time.Now().Add(timeout), gocbcore.WaitUntilReadyOptions{}, func(_ *gocbcore.WaitUntilReadyResult, err error) { ready <- err })
	must(err)
	must(<-ready)

	seqnos := make(chan map[uint16]gocbcore.SeqNo, 1)
	_, err = agent.GetVbucketSeqnos(1, memd.VbucketStateActive, gocbcore.GetVbucketSeqnoOptions{}, func(entries []gocbcore.VbSeqNoEntry, err error) {
		must(err)
		all := map[uint16]gocbcore.SeqNo{}
		for _, entry := range entries {
			all[entry.VbID] = entry.SeqNo
		}
		seqnos <- all
	})
	must(err)
	now := <-seqnos
	if len(now) != vbuckets {
		log.Fatalf("%d vBuckets", len(now))
	}
	for vb, seqno := range now {
		if uint64(seqno) > f.places[vb].Seqno {
			f.left[vb] = true
		}
	}
	open := make([]uint16, 0, len(f.left))
	for vb := range f.left {
		open = append(open, vb)
	}
	for _, vb := range open {
		if !f.stopped.Load() {
			f.open(agent, vb, now[vb])
		}
	}
	if len(open) > 0 {
		select {
		case <-f.done:
		case <-time.After(timeout):
			log.Fatalf("%d vBuckets are not at their ends after %v", len(f.left), timeout)
		}
	}
	f.mu.Lock()
	for vb := range f.places {
		// Of a part of what has no order nothing counts.
		if f.places[vb].unordered {
			f.places[vb] = Place{Documents: map[string]string{}}
		}
	}
	text, err := json.Marshal(f.places)
	must(err)
	must(os.WriteFile(os.Args[5], text, 0o600))
	fmt.Printf("{\"events\": %d, \"streams\": %d, \"rolled_back\": %d, \"unordered\": %d}\n", f.events.Load(), len(open), f.rolledBack, f.unordered)
	f.mu.Unlock()
	must(agent.Close())
}
