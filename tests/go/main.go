// The checks of tests/clients/checks.py through the Couchbase SDK for Go.
// usage: checks CONNECTION USER PASSWORD BUCKET [AUTHORITY]; prints `ok NAME` or `not ok NAME: reason`. The environment
// variable CHECK is the name of the only one to run.
package main

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/couchbase/gocb/v2"
)

const mebibyte = 1024 * 1024

type check struct {
	name string
	run  func(c *gocb.Collection, key string) error
}

// must turns an unexpected error into a reason that names the step.
func must(step string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	return nil
}

// fails requires one of the given errors.
func fails(step string, err error, kinds ...error) error {
	if err == nil {
		return fmt.Errorf("%s: no error, %v expected", step, kinds)
	}
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return nil
		}
	}
	return fmt.Errorf("%s: %v, %v expected", step, err, kinds)
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func content[T any](c *gocb.Collection, key string, expected T) error {
	result, err := c.Get(key, nil)
	if err != nil {
		return must("get", err)
	}
	var got T
	if err := result.Content(&got); err != nil {
		return must("content", err)
	}
	if !reflect.DeepEqual(got, expected) {
		return fmt.Errorf("read %v, not %v", got, expected)
	}
	return nil
}

func upsert(c *gocb.Collection, key string, value any) (gocb.Cas, error) {
	result, err := c.Upsert(key, value, nil)
	if err != nil {
		return 0, must("upsert", err)
	}
	return result.Cas(), nil
}

func counter(step string, expected uint64) func(*gocb.CounterResult, error) error {
	return func(result *gocb.CounterResult, err error) error {
		if err != nil {
			return must(step, err)
		}
		if result.Content() != expected {
			return fmt.Errorf("%s: %d, not %d", step, result.Content(), expected)
		}
		return nil
	}
}

func missing(c *gocb.Collection, key string) error {
	_, err := c.Get(key, nil)
	return fails("get", err, gocb.ErrDocumentNotFound)
}

func equal(step string, got, expected any) error {
	if !reflect.DeepEqual(got, expected) {
		return fmt.Errorf("%s: %v, not %v", step, got, expected)
	}
	return nil
}

// result is what LookupIn and MutateIn return.
type result interface {
	ContentAt(at uint, value any) error
}

// values compares the results of the first paths.
func values(of result, expected ...any) error {
	for at, value := range expected {
		var got any
		step, err := fmt.Sprintf("result %d", at), of.ContentAt(uint(at), &got)
		if err := first(must(step, err), equal(step, got, value)); err != nil {
			return err
		}
	}
	return nil
}

func lookup(c *gocb.Collection, key string, specs ...gocb.LookupInSpec) (*gocb.LookupInResult, error) {
	found, err := c.LookupIn(key, specs, nil)
	return found, must("lookup", err)
}

func mutate(c *gocb.Collection, key string, options *gocb.MutateInOptions, specs ...gocb.MutateInSpec) (*gocb.MutateInResult, error) {
	changed, err := c.MutateIn(key, specs, options)
	return changed, must("mutate", err)
}

// mutated is mutate for callers that need no result.
func mutated(c *gocb.Collection, key string, options *gocb.MutateInOptions, specs ...gocb.MutateInSpec) error {
	_, err := mutate(c, key, options, specs...)
	return err
}

// expiry is the zero time for a document that does not expire.
func expiry(c *gocb.Collection, key string) (time.Time, error) {
	read, err := c.Get(key, &gocb.GetOptions{WithExpiry: true})
	if err != nil {
		return time.Time{}, must("get with expiry", err)
	}
	return read.ExpiryTime(), nil
}

// expires requires an expiry of about so many seconds from now.
func expires(c *gocb.Collection, key string, seconds time.Duration) error {
	at, err := expiry(c, key)
	if left := time.Until(at); err == nil && (left < (seconds-3)*time.Second || left > (seconds+2)*time.Second) {
		err = fmt.Errorf("expires in %v, not %d s", left, seconds)
	}
	return err
}

// lasts requires that the document does not expire.
func lasts(c *gocb.Collection, key string) error {
	at, err := expiry(c, key)
	return first(err, equal("expiry", at, time.Time{}))
}

// unstaged requires that no transaction has left anything in the document.
func unstaged(c *gocb.Collection, key string) error {
	found, err := lookup(c, key, gocb.ExistsSpec("txn", &gocb.ExistsSpecOptions{IsXattr: true}))
	if err != nil {
		return err
	}
	return values(found, false)
}

type number struct {
	N int `json:"n"`
}

var checks = []check{
	{"upsert-get", func(c *gocb.Collection, key string) error {
		document := map[string]any{"text": "grüße", "number": 1.5, "list": []any{1.0, nil, true}}
		result, err := c.Upsert(key, document, nil)
		if err != nil {
			return err
		}
		if result.MutationToken() == nil {
			return errors.New("no mutation token")
		}
		read, err := c.Get(key, nil)
		if err != nil {
			return err
		}
		if read.Cas() != result.Cas() || read.Cas() == 0 {
			return fmt.Errorf("CAS %d, not %d", read.Cas(), result.Cas())
		}
		return content(c, key, document)
	}},
	{"get-missing", missing},
	{"insert", func(c *gocb.Collection, key string) error {
		_, err := c.Insert(key, 1, nil)
		return first(must("insert", err), content(c, key, 1))
	}},
	{"insert-existing", func(c *gocb.Collection, key string) error {
		_, err := upsert(c, key, 1)
		_, again := c.Insert(key, 2, nil)
		return first(err, fails("insert", again, gocb.ErrDocumentExists), content(c, key, 1))
	}},
	{"insert-expiry-absolute", func(c *gocb.Collection, key string) error {
		// The SDK takes durations only, and sends a time for those of 30 days and more.
		const far = 40 * 24 * time.Hour
		earliest := time.Now().Add(far).Truncate(time.Second)
		_, err := c.Insert(key, number{1}, &gocb.InsertOptions{Expiry: far})
		latest := time.Now().Add(far)
		at, err2 := expiry(c, key)
		if err := first(must("insert", err), err2); err != nil {
			return err
		}
		if at.Before(earliest) || at.After(latest) {
			return fmt.Errorf("expires at %v, not %v to %v", at, earliest, latest)
		}
		return nil
	}},
	{"replace", func(c *gocb.Collection, key string) error {
		cas, err := upsert(c, key, 1)
		_, withCas := c.Replace(key, 2, &gocb.ReplaceOptions{Cas: cas})
		_, without := c.Replace(key, 3, nil)
		return first(err, must("with CAS", withCas), must("without", without), content(c, key, 3))
	}},
	{"replace-missing", func(c *gocb.Collection, key string) error {
		_, err := c.Replace(key, 1, nil)
		return fails("replace", err, gocb.ErrDocumentNotFound)
	}},
	{"replace-cas-mismatch", func(c *gocb.Collection, key string) error {
		cas, err := upsert(c, key, 1)
		_, err2 := upsert(c, key, 2)
		_, stale := c.Replace(key, 3, &gocb.ReplaceOptions{Cas: cas})
		return first(err, err2, fails("replace", stale, gocb.ErrCasMismatch), content(c, key, 2))
	}},
	{"replace-expiry", func(c *gocb.Collection, key string) error {
		_, err := upsert(c, key, number{1})
		_, set := c.Replace(key, number{2}, &gocb.ReplaceOptions{Expiry: 100 * time.Second})
		before, err2 := expiry(c, key)
		if err := first(err, must("set", set), err2, expires(c, key, 100)); err != nil {
			return err
		}
		_, kept := c.Replace(key, number{3}, &gocb.ReplaceOptions{PreserveExpiry: true})
		after, err := expiry(c, key)
		_, cleared := c.Replace(key, number{4}, nil)
		return first(
			must("keep", kept), err, equal("expiry", after, before), must("clear", cleared), lasts(c, key), content(c, key, number{4}),
		)
	}},
	{"remove", func(c *gocb.Collection, key string) error {
		cas, err := upsert(c, key, 1)
		_, gone := c.Remove(key, &gocb.RemoveOptions{Cas: cas})
		return first(err, must("remove", gone), missing(c, key))
	}},
	{"remove-missing", func(c *gocb.Collection, key string) error {
		_, err := c.Remove(key, nil)
		return fails("remove", err, gocb.ErrDocumentNotFound)
	}},
	{"remove-cas-mismatch", func(c *gocb.Collection, key string) error {
		cas, err := upsert(c, key, 1)
		_, err2 := upsert(c, key, 2)
		_, stale := c.Remove(key, &gocb.RemoveOptions{Cas: cas})
		return first(err, err2, fails("remove", stale, gocb.ErrCasMismatch), content(c, key, 2))
	}},
	{"exists", func(c *gocb.Collection, key string) error {
		before, err := c.Exists(key, nil)
		if err != nil || before.Exists() {
			return fmt.Errorf("before: %v %v", before, err)
		}
		if _, err := upsert(c, key, 1); err != nil {
			return err
		}
		after, err := c.Exists(key, nil)
		if err != nil || !after.Exists() {
			return fmt.Errorf("after: %v %v", after, err)
		}
		return nil
	}},
	{"touch", func(c *gocb.Collection, key string) error {
		_, err := upsert(c, key, 1)
		_, touched := c.Touch(key, 2*time.Second, nil)
		time.Sleep(3200 * time.Millisecond)
		_, again := c.Touch(key, 2*time.Second, nil)
		return first(err, must("touch", touched), missing(c, key), fails("touch", again, gocb.ErrDocumentNotFound))
	}},
	{"get-and-touch", func(c *gocb.Collection, key string) error {
		_, err := c.Upsert(key, 1, &gocb.UpsertOptions{Expiry: 2 * time.Second})
		_, touched := c.GetAndTouch(key, time.Minute, nil)
		time.Sleep(3200 * time.Millisecond)
		return first(must("upsert", err), must("touch", touched), content(c, key, 1))
	}},
	{"touch-zero", func(c *gocb.Collection, key string) error {
		_, err := c.Upsert(key, number{1}, &gocb.UpsertOptions{Expiry: 100 * time.Second})
		before := expires(c, key, 100)
		_, touched := c.Touch(key, 0, nil)
		if err := first(must("upsert", err), before, must("touch", touched), lasts(c, key)); err != nil {
			return err
		}
		_, err = c.Upsert(key, number{2}, &gocb.UpsertOptions{Expiry: 100 * time.Second})
		_, touched = c.GetAndTouch(key, 0, nil)
		return first(must("upsert", err), must("get and touch", touched), lasts(c, key), content(c, key, number{2}))
	}},
	{"expiry", func(c *gocb.Collection, key string) error {
		_, err := c.Upsert(key, 1, &gocb.UpsertOptions{Expiry: 2 * time.Second})
		before := content(c, key, 1)
		time.Sleep(3200 * time.Millisecond)
		after := missing(c, key)
		_, inserted := c.Insert(key, 2, nil)
		return first(must("upsert", err), before, after, must("insert", inserted))
	}},
	{"preserve-expiry", func(c *gocb.Collection, key string) error {
		_, err := c.Upsert(key, 1, &gocb.UpsertOptions{Expiry: 2 * time.Second})
		_, kept := c.Upsert(key, 2, &gocb.UpsertOptions{PreserveExpiry: true})
		time.Sleep(3200 * time.Millisecond)
		return first(must("upsert", err), must("preserve", kept), missing(c, key))
	}},
	{"get-and-lock", func(c *gocb.Collection, key string) error {
		_, err := upsert(c, key, 1)
		locked, err2 := c.GetAndLock(key, 10*time.Second, nil)
		if err := first(err, must("lock", err2), content(c, key, 1)); err != nil {
			return err
		}
		_, refused := c.Upsert(key, 2, &gocb.UpsertOptions{Timeout: 700 * time.Millisecond})
		if refused == nil || !strings.Contains(strings.ToLower(refused.Error()), "lock") {
			return fmt.Errorf("a write of a locked document: %v", refused)
		}
		_, replaced := c.Replace(key, 3, &gocb.ReplaceOptions{Cas: locked.Cas()})
		_, free := upsert(c, key, 4)
		return first(must("replace", replaced), free)
	}},
	{"unlock", func(c *gocb.Collection, key string) error {
		_, err := upsert(c, key, 1)
		locked, err2 := c.GetAndLock(key, 15*time.Second, nil)
		if err := first(err, must("lock", err2)); err != nil {
			return err
		}
		unlocked := c.Unlock(key, locked.Cas(), nil)
		_, free := upsert(c, key, 2)
		again := c.Unlock(key, locked.Cas(), &gocb.UnlockOptions{Timeout: 700 * time.Millisecond})
		if again == nil {
			return errors.New("an unlocked document was unlocked again")
		}
		return first(must("unlock", unlocked), free)
	}},
	{"lock-errors", func(c *gocb.Collection, key string) error {
		_, locked := c.GetAndLock(key, 10*time.Second, nil)
		_, touched := c.GetAndTouch(key, 10*time.Second, nil)
		unlocked := c.Unlock(key, 1, nil)
		if err := first(
			fails("lock", locked, gocb.ErrDocumentNotFound), fails("touch", touched, gocb.ErrDocumentNotFound),
			fails("unlock", unlocked, gocb.ErrDocumentNotFound),
		); err != nil {
			return err
		}
		cas, err := upsert(c, key, 1)
		unlocked = c.Unlock(key, cas, nil)
		held, err2 := c.GetAndLock(key, 15*time.Second, nil)
		if err := first(err, fails("unlock a free one", unlocked, gocb.ErrDocumentNotLocked), must("lock", err2)); err != nil {
			return err
		}
		unlocked = c.Unlock(key, cas, nil)
		_, replaced := c.Replace(key, 2, &gocb.ReplaceOptions{Cas: held.Cas()})
		held, err = c.GetAndLock(key, 15*time.Second, nil)
		if err := first(
			fails("unlock with another CAS", unlocked, gocb.ErrCasMismatch), must("replace", replaced), must("lock again", err),
		); err != nil {
			return err
		}
		_, removed := c.Remove(key, &gocb.RemoveOptions{Cas: held.Cas()})
		return first(must("remove", removed), missing(c, key))
	}},
	{"counter", func(c *gocb.Collection, key string) error {
		b := c.Binary()
		return first(
			counter("initial", 10)(b.Increment(key, &gocb.IncrementOptions{Initial: 10, Delta: 5})),
			counter("increment", 15)(b.Increment(key, &gocb.IncrementOptions{Initial: -1, Delta: 5})),
			counter("decrement", 12)(b.Decrement(key, &gocb.DecrementOptions{Initial: -1, Delta: 3})),
			counter("floor", 0)(b.Decrement(key, &gocb.DecrementOptions{Initial: -1, Delta: 100})),
			content(c, key, 0),
		)
	}},
	{"counter-missing", func(c *gocb.Collection, key string) error {
		_, err := c.Binary().Increment(key, &gocb.IncrementOptions{Initial: -1, Delta: 1})
		return fails("increment", err, gocb.ErrDocumentNotFound)
	}},
	{"counter-not-a-number", func(c *gocb.Collection, key string) error {
		_, err := upsert(c, key, map[string]int{"a": 1})
		_, bad := c.Binary().Increment(key, &gocb.IncrementOptions{Initial: -1, Delta: 1})
		return first(err, fails("increment", bad, gocb.ErrDeltaInvalid))
	}},
	{"decrement-creates", func(c *gocb.Collection, key string) error {
		b := c.Binary()
		_, err := b.Decrement(key, &gocb.DecrementOptions{Initial: -1, Delta: 1})
		return first(
			fails("decrement a missing one", err, gocb.ErrDocumentNotFound),
			counter("create", 7)(b.Decrement(key, &gocb.DecrementOptions{Initial: 7, Delta: 1, Expiry: 100 * time.Second})),
			expires(c, key, 100),
			counter("decrement", 5)(b.Decrement(key, &gocb.DecrementOptions{Initial: -1, Delta: 2})),
		)
	}},
	{"append-prepend", func(c *gocb.Collection, key string) error {
		raw := gocb.NewRawBinaryTranscoder()
		_, err := c.Upsert(key, []byte("b"), &gocb.UpsertOptions{Transcoder: raw})
		appended, err2 := c.Binary().Append(key, []byte("c"), nil)
		if err := first(must("upsert", err), must("append", err2)); err != nil {
			return err
		}
		_, err = c.Binary().Prepend(key, []byte("a"), &gocb.PrependOptions{Cas: appended.Cas()})
		_, stale := c.Binary().Append(key, []byte("x"), &gocb.AppendOptions{Cas: appended.Cas()})
		read, err2 := c.Get(key, &gocb.GetOptions{Transcoder: raw})
		if err := first(must("prepend", err), must("get", err2)); err != nil {
			return err
		}
		var got []byte
		if err := read.Content(&got); err != nil || string(got) != "abc" {
			return fmt.Errorf("read %q %v", got, err)
		}
		return fails("append with an old CAS", stale, gocb.ErrCasMismatch, gocb.ErrDocumentExists)
	}},
	{"append-missing", func(c *gocb.Collection, key string) error {
		_, err := c.Binary().Append(key, []byte("x"), nil)
		if err == nil || errors.Is(err, gocb.ErrTimeout) {
			return fmt.Errorf("append: %v", err)
		}
		return missing(c, key)
	}},
	{"durability-majority", func(c *gocb.Collection, key string) error {
		level := gocb.DurabilityLevelMajority
		result, err := c.Upsert(key, 1, &gocb.UpsertOptions{DurabilityLevel: level})
		if err != nil {
			return must("upsert", err)
		}
		_, replaced := c.Replace(key, 2, &gocb.ReplaceOptions{Cas: result.Cas(), DurabilityLevel: level})
		_, removed := c.Remove(key, &gocb.RemoveOptions{DurabilityLevel: level})
		_, inserted := c.Insert(key, 3, &gocb.InsertOptions{DurabilityLevel: level})
		return first(
			must("replace", replaced), must("remove", removed), must("insert", inserted),
			counter("increment", 4)(c.Binary().Increment(key, &gocb.IncrementOptions{Initial: -1, Delta: 1, DurabilityLevel: level})),
		)
	}},
	{"durability-persist-refused", func(c *gocb.Collection, key string) error {
		_, one := c.Upsert(key, 1, &gocb.UpsertOptions{DurabilityLevel: gocb.DurabilityLevelMajorityAndPersistOnMaster})
		_, two := c.Upsert(key, 1, &gocb.UpsertOptions{DurabilityLevel: gocb.DurabilityLevelPersistToMajority})
		return first(
			fails("persist on master", one, gocb.ErrDurabilityLevelNotAvailable),
			fails("persist to majority", two, gocb.ErrDurabilityLevelNotAvailable),
			missing(c, key),
		)
	}},
	{"large-value", func(c *gocb.Collection, key string) error {
		raw := gocb.NewRawBinaryTranscoder()
		for _, size := range []int{32 * 1024, 32*1024 + 1, mebibyte, 20 * mebibyte} {
			value := bytes.Repeat([]byte{byte(size % 251)}, size)
			if _, err := c.Upsert(key, value, &gocb.UpsertOptions{Transcoder: raw, Timeout: 30 * time.Second}); err != nil {
				return must(fmt.Sprintf("upsert of %d bytes", size), err)
			}
			read, err := c.Get(key, &gocb.GetOptions{Transcoder: raw, Timeout: 30 * time.Second})
			if err != nil {
				return must(fmt.Sprintf("get of %d bytes", size), err)
			}
			var got []byte
			if err := read.Content(&got); err != nil || !bytes.Equal(got, value) {
				return fmt.Errorf("%d bytes came back as %d: %v", size, len(got), err)
			}
		}
		return nil
	}},
	{"too-big", func(c *gocb.Collection, key string) error {
		_, err := upsert(c, key, "old")
		_, refused := c.Upsert(key, make([]byte, 20*mebibyte+1), &gocb.UpsertOptions{Transcoder: gocb.NewRawBinaryTranscoder(), Timeout: 30 * time.Second})
		return first(err, fails("upsert", refused, gocb.ErrValueTooLarge), content(c, key, "old"))
	}},
	{"binary-value", func(c *gocb.Collection, key string) error {
		raw := gocb.NewRawBinaryTranscoder()
		value := make([]byte, 256)
		for n := range value {
			value[n] = byte(n)
		}
		_, err := c.Upsert(key, value, &gocb.UpsertOptions{Transcoder: raw})
		read, err2 := c.Get(key, &gocb.GetOptions{Transcoder: raw})
		if err := first(err, err2); err != nil {
			return err
		}
		var got []byte
		if err := read.Content(&got); err != nil || !bytes.Equal(got, value) {
			return fmt.Errorf("read %v %v", got, err)
		}
		return nil
	}},
	{"string-value", func(c *gocb.Collection, key string) error {
		raw := gocb.NewRawStringTranscoder()
		_, err := c.Upsert(key, "grüße", &gocb.UpsertOptions{Transcoder: raw})
		read, err2 := c.Get(key, &gocb.GetOptions{Transcoder: raw})
		if err := first(err, err2); err != nil {
			return err
		}
		var got string
		if err := read.Content(&got); err != nil || got != "grüße" {
			return fmt.Errorf("read %q %v", got, err)
		}
		return nil
	}},
	{"any-replica", func(c *gocb.Collection, key string) error {
		if _, err := upsert(c, key, 1); err != nil {
			return err
		}
		found, err := c.GetAnyReplica(key, nil)
		if err != nil {
			return must("any replica", err)
		}
		var got int
		if err := found.Content(&got); err != nil || got != 1 || found.IsReplica() {
			return fmt.Errorf("read %d, replica %v, %v", got, found.IsReplica(), err)
		}
		return nil
	}},
	{"any-replica-missing", func(c *gocb.Collection, key string) error {
		// The SDK waits for a result until its timeout, even when every request has failed.
		_, err := c.GetAnyReplica(key, &gocb.GetAnyReplicaOptions{Timeout: 700 * time.Millisecond})
		return fails("any replica", err, gocb.ErrDocumentUnretrievable)
	}},
	{"batch", func(c *gocb.Collection, key string) error {
		sets, gets := []gocb.BulkOp{}, []gocb.BulkOp{}
		for n := range 500 {
			id := fmt.Sprintf("%s-%d", key, n)
			sets = append(sets, &gocb.UpsertOp{ID: id, Value: n})
			gets = append(gets, &gocb.GetOp{ID: id})
		}
		if err := first(must("bulk upsert", c.Do(sets, nil)), must("bulk get", c.Do(gets, nil))); err != nil {
			return err
		}
		for n := range sets {
			if err := sets[n].(*gocb.UpsertOp).Err; err != nil {
				return must("upsert", err)
			}
			get := gets[n].(*gocb.GetOp)
			if get.Err != nil {
				return must("get", get.Err)
			}
			var got int
			if err := get.Result.Content(&got); err != nil || got != n {
				return fmt.Errorf("read %d, not %d: %v", got, n, err)
			}
		}
		return nil
	}},
	{"lookup-in", func(c *gocb.Collection, key string) error {
		deep := map[string]any{"b": map[string]any{"c": "grüße"}}
		cas, err := upsert(c, key, map[string]any{"a": 1, "list": []any{1, 2, "x"}, "deep": deep, "nothing": nil})
		read, err2 := lookup(c, key,
			gocb.GetSpec("deep.b.c", nil), gocb.GetSpec("list[-1]", nil), gocb.GetSpec("deep", nil), gocb.GetSpec("nothing", nil),
			gocb.ExistsSpec("a", nil), gocb.ExistsSpec("none", nil), gocb.CountSpec("list", nil), gocb.CountSpec("", nil),
			gocb.GetSpec("none", nil), gocb.GetSpec("a.b", nil), gocb.GetSpec("", nil),
		)
		if err := first(err, err2); err != nil {
			return err
		}
		var whole map[string]any
		_, gone := lookup(c, key+"-missing", gocb.GetSpec("a", nil))
		many := make([]gocb.LookupInSpec, 17)
		for n := range many {
			many[n] = gocb.GetSpec("a", nil)
		}
		_, tooMany := lookup(c, key, many...)
		return first(
			equal("CAS", read.Cas(), cas),
			values(read, "grüße", "x", deep, nil, true, false, 3.0, 4.0),
			fails("a missing path", read.ContentAt(8, &whole), gocb.ErrPathNotFound),
			fails("a path through a number", read.ContentAt(9, &whole), gocb.ErrPathMismatch),
			must("the whole document", read.ContentAt(10, &whole)),
			equal("the whole document", whole["deep"], any(deep)),
			equal("exists", []bool{read.Exists(4), read.Exists(5), read.Exists(8)}, []bool{true, false, false}),
			fails("a missing document", gone, gocb.ErrDocumentNotFound),
			fails("17 paths", tooMany, gocb.ErrInvalidArgument),
		)
	}},
	{"lookup-any-replica", func(c *gocb.Collection, key string) error {
		specs := []gocb.LookupInSpec{gocb.GetSpec("n", nil), gocb.ExistsSpec("none", nil)}
		cas, err := upsert(c, key, number{1})
		found, err2 := c.LookupInAnyReplica(key, specs, nil)
		all, err3 := c.LookupInAllReplicas(key, specs, nil)
		if err := first(err, must("any replica", err2), must("all replicas", err3)); err != nil {
			return err
		}
		one, another := all.Next(), all.Next()
		if one == nil || another != nil {
			return fmt.Errorf("all replicas: %v, then %v", one, another)
		}
		// The SDK waits for a result until its timeout, even when every request has failed.
		_, gone := c.LookupInAnyReplica(key+"-missing", specs, &gocb.LookupInAnyReplicaOptions{Timeout: 700 * time.Millisecond})
		return first(
			values(found, 1.0, false), equal("CAS", found.Cas(), cas), equal("a replica", found.IsReplica(), false),
			values(one, 1.0, false), equal("a replica", one.IsReplica(), false),
			fails("a missing document", gone, gocb.ErrDocumentUnretrievable),
		)
	}},
	{"mutate-in", func(c *gocb.Collection, key string) error {
		_, err := upsert(c, key, map[string]any{"n": 1, "old": "x", "gone": true, "list": []int{2}})
		changed, err2 := mutate(c, key, nil,
			gocb.IncrementSpec("counter", 5, nil), gocb.DecrementSpec("counter", 2, nil),
			gocb.UpsertSpec("n", 2, nil), gocb.InsertSpec("fresh", map[string]any{"a": nil}, nil),
			gocb.ReplaceSpec("old", "y", nil), gocb.RemoveSpec("gone", nil),
			gocb.ArrayAppendSpec("list", 3, nil), gocb.ArrayPrependSpec("list", 1, nil), gocb.ArrayInsertSpec("list[1]", 1.5, nil),
			gocb.ArrayAddUniqueSpec("list", 4, nil), gocb.ArrayAppendSpec("list", []int{8, 9}, &gocb.ArrayAppendSpecOptions{HasMultiple: true}),
			gocb.UpsertSpec("x.y.z", []int{1}, &gocb.UpsertSpecOptions{CreatePath: true}),
		)
		if err := first(err, err2, content(c, key, map[string]any{
			"n": 2.0, "old": "y", "list": []any{1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 9.0}, "fresh": map[string]any{"a": nil}, "counter": 3.0,
			"x": map[string]any{"y": map[string]any{"z": []any{1.0}}},
		})); err != nil {
			return err
		}
		if changed.MutationToken() == nil {
			return errors.New("no mutation token")
		}
		read, err := c.Get(key, nil)
		if err != nil {
			return must("get", err)
		}
		return first(
			values(changed, 5.0, 3.0), equal("CAS", read.Cas(), changed.Cas()),
			mutated(c, key, &gocb.MutateInOptions{Cas: changed.Cas()}, gocb.UpsertSpec("n", 3, nil)),
			mutated(c, key, nil, gocb.ReplaceSpec("", number{7}, nil)), content(c, key, number{7}),
			mutated(c, key, nil, gocb.RemoveSpec("", nil)), missing(c, key),
		)
	}},
	{"mutate-in-errors", func(c *gocb.Collection, key string) error {
		document := map[string]any{"a": 1.0, "list": []any{1.0, "x"}, "huge": json.RawMessage("100000000000000000000")}
		old, err := upsert(c, key, document)
		cas, err2 := upsert(c, key, document)
		if err := first(err, err2); err != nil {
			return err
		}
		for n, one := range []struct {
			spec gocb.MutateInSpec
			kind error
		}{
			{gocb.InsertSpec("a", 2, nil), gocb.ErrPathExists},
			{gocb.ArrayAddUniqueSpec("list", 1, nil), gocb.ErrPathExists},
			{gocb.ReplaceSpec("none", 2, nil), gocb.ErrPathNotFound},
			{gocb.RemoveSpec("none", nil), gocb.ErrPathNotFound},
			{gocb.UpsertSpec("x.y", 2, nil), gocb.ErrPathNotFound},
			{gocb.UpsertSpec("a.b", 2, nil), gocb.ErrPathMismatch},
			{gocb.ArrayAppendSpec("a", 2, nil), gocb.ErrPathMismatch},
			{gocb.IncrementSpec("list", 2, nil), gocb.ErrPathMismatch},
			{gocb.UpsertSpec("a..b[", 2, nil), gocb.ErrPathInvalid},
			{gocb.ArrayAddUniqueSpec("list", number{1}, nil), gocb.ErrValueInvalid},
			{gocb.IncrementSpec("a", 0, nil), gocb.ErrDeltaInvalid},
			{gocb.IncrementSpec("huge", 1, nil), gocb.ErrNumberTooBig},
		} {
			step := fmt.Sprintf("error %d", n)
			alone, after := mutated(c, key, nil, one.spec), mutated(c, key, nil, gocb.UpsertSpec("changed", true, nil), one.spec)
			if err := first(fails(step, alone, one.kind), fails(step, after, one.kind)); err != nil {
				return err
			}
		}
		// The SDK reports a CAS mismatch of MutateIn as an existing document.
		stale := mutated(c, key, &gocb.MutateInOptions{Cas: old}, gocb.UpsertSpec("a", 2, nil))
		gone := mutated(c, key+"-missing", nil, gocb.UpsertSpec("a", 2, nil))
		_, raw := c.Upsert(key+"-raw", []byte("text"), &gocb.UpsertOptions{Transcoder: gocb.NewRawBinaryTranscoder()})
		read, err := c.Get(key, nil)
		if err != nil {
			return must("get", err)
		}
		return first(
			fails("CAS", stale, gocb.ErrCasMismatch, gocb.ErrDocumentExists), fails("a missing document", gone, gocb.ErrDocumentNotFound),
			content(c, key, map[string]any{"a": 1.0, "list": []any{1.0, "x"}, "huge": 1e20}), equal("CAS", read.Cas(), cas),
			must("raw", raw), fails("raw", mutated(c, key+"-raw", nil, gocb.UpsertSpec("a", 2, nil)), gocb.ErrValueNotJSON, gocb.ErrDocumentNotJSON),
		)
	}},
	{"mutate-in-upsert", func(c *gocb.Collection, key string) error {
		upserted, inserted := &gocb.MutateInOptions{StoreSemantic: gocb.StoreSemanticsUpsert}, &gocb.MutateInOptions{StoreSemantic: gocb.StoreSemanticsInsert}
		remove := func() error {
			_, err := c.Remove(key, nil)
			return must("remove", err)
		}
		nested := map[string]any{"x": map[string]any{"y": 1.0}}
		return first(
			fails("replace", mutated(c, key, nil, gocb.UpsertSpec("n", 1, nil)), gocb.ErrDocumentNotFound),
			mutated(c, key, upserted, gocb.UpsertSpec("n", 1, nil)),
			mutated(c, key, upserted, gocb.IncrementSpec("n", 3, nil)), content(c, key, number{4}),
			fails("insert", mutated(c, key, inserted, gocb.UpsertSpec("n", 9, nil)), gocb.ErrDocumentExists),
			remove(), mutated(c, key, inserted, gocb.InsertSpec("n", 1, nil)), content(c, key, number{1}),
			remove(), mutated(c, key, upserted, gocb.ArrayAppendSpec("", 1, nil), gocb.ArrayAppendSpec("", 2, nil)), content(c, key, []int{1, 2}),
			// Whoever may make the document may make the parents of a path.
			remove(), mutated(c, key, upserted, gocb.UpsertSpec("x.y", 1, nil)), content(c, key, nested),
			remove(), mutated(c, key, inserted, gocb.UpsertSpec("x.y", 1, nil)), content(c, key, nested),
		)
	}},
	{"mutate-in-durable", func(c *gocb.Collection, key string) error {
		_, err := upsert(c, key, number{1})
		changed, err2 := mutate(c, key, &gocb.MutateInOptions{DurabilityLevel: gocb.DurabilityLevelMajority},
			gocb.UpsertSpec("_x", 1, &gocb.UpsertSpecOptions{IsXattr: true}), gocb.IncrementSpec("n", 1, nil))
		if err := first(err, err2); err != nil {
			return err
		}
		var n int
		one := mutated(c, key, &gocb.MutateInOptions{DurabilityLevel: gocb.DurabilityLevelMajorityAndPersistOnMaster}, gocb.IncrementSpec("n", 1, nil))
		two := mutated(c, key, &gocb.MutateInOptions{DurabilityLevel: gocb.DurabilityLevelPersistToMajority}, gocb.IncrementSpec("n", 1, nil))
		return first(
			must("result", changed.ContentAt(1, &n)), equal("result", n, 2),
			fails("persist on master", one, gocb.ErrDurabilityLevelNotAvailable),
			fails("persist to majority", two, gocb.ErrDurabilityLevelNotAvailable),
			content(c, key, number{2}),
		)
	}},
	{"mutate-in-clears-expiry", func(c *gocb.Collection, key string) error {
		_, err := c.Upsert(key, number{1}, &gocb.UpsertOptions{Expiry: 100 * time.Second})
		changed := mutated(c, key, nil, gocb.IncrementSpec("n", 1, nil))
		at, err2 := expiry(c, key)
		return first(must("upsert", err), changed, err2, equal("expiry", at, time.Time{}))
	}},
	{"preserve-expiry-in-mutate", func(c *gocb.Collection, key string) error {
		_, err := c.Upsert(key, number{1}, &gocb.UpsertOptions{Expiry: 100 * time.Second})
		before, err2 := expiry(c, key)
		changed := mutated(c, key, &gocb.MutateInOptions{PreserveExpiry: true}, gocb.IncrementSpec("n", 1, nil))
		after, err3 := expiry(c, key)
		return first(must("upsert", err), err2, changed, err3, equal("expiry", after, before), expires(c, key, 100), content(c, key, number{2}))
	}},
	{"get-with-expiry", func(c *gocb.Collection, key string) error {
		_, err := c.Upsert(key, number{1}, &gocb.UpsertOptions{Expiry: 100 * time.Second})
		if err := first(must("upsert", err), expires(c, key, 100)); err != nil {
			return err
		}
		changed := mutated(c, key, &gocb.MutateInOptions{Expiry: 200 * time.Second}, gocb.UpsertSpec("n", 2, nil))
		if err := first(changed, expires(c, key, 200)); err != nil {
			return err
		}
		_, err = upsert(c, key, number{3})
		read, err2 := c.Get(key, &gocb.GetOptions{WithExpiry: true})
		if err := first(err, must("get", err2)); err != nil {
			return err
		}
		var got number
		return first(must("content", read.Content(&got)), equal("content", got, number{3}), equal("expiry", read.ExpiryTime(), time.Time{}))
	}},
	{"get-with-projection", func(c *gocb.Collection, key string) error {
		document, fields, names := map[string]any{}, map[string]any{}, []string{}
		for n := range 20 {
			names = append(names, fmt.Sprintf("f%d", n))
			document[names[n]], fields[names[n]] = float64(n), float64(n)
		}
		document["deep"] = map[string]any{"b": map[string]any{"c": 1.0}, "d": 2.0}
		if _, err := c.Upsert(key, document, &gocb.UpsertOptions{Expiry: 100 * time.Second}); err != nil {
			return must("upsert", err)
		}
		project := func(expected map[string]any, options gocb.GetOptions) error {
			read, err := c.Get(key, &options)
			if err != nil {
				return must("get", err)
			}
			var got map[string]any
			err = first(must("content", read.Content(&got)), equal("content", got, expected))
			if err == nil && options.WithExpiry && time.Until(read.ExpiryTime()) < 90*time.Second {
				err = fmt.Errorf("expiry %v", read.ExpiryTime())
			}
			return err
		}
		_, gone := c.Get(key+"-missing", &gocb.GetOptions{Project: names[:2]})
		some := map[string]any{"f1": 1.0, "deep": map[string]any{"b": map[string]any{"c": 1.0}}}
		return first(
			project(some, gocb.GetOptions{Project: []string{"f1", "deep.b.c", "none"}}),
			project(map[string]any{"deep": document["deep"]}, gocb.GetOptions{Project: []string{"deep"}, WithExpiry: true}),
			// More paths than a request can hold: the SDK reads the whole document.
			project(fields, gocb.GetOptions{Project: names}),
			fails("a missing document", gone, gocb.ErrDocumentNotFound),
		)
	}},
	{"data-structures", func(c *gocb.Collection, key string) error {
		for _, kind := range []string{"-list", "-map", "-set", "-queue"} {
			_, _ = c.Remove(key+kind, nil)
		}
		return first(
			must("list", list(c.List(key+"-list"))), must("map", dictionary(c.Map(key+"-map"))),
			must("set", set(c.Set(key+"-set"))), must("queue", queue(c.Queue(key+"-queue"))),
		)
	}},
	{"xattrs", func(c *gocb.Collection, key string) error {
		xattr := &gocb.GetSpecOptions{IsXattr: true}
		_, err := upsert(c, key, number{1})
		changed, err2 := mutate(c, key, nil,
			gocb.UpsertSpec("meta.owner", "grüße", &gocb.UpsertSpecOptions{IsXattr: true, CreatePath: true}),
			gocb.UpsertSpec("meta.cas", gocb.MutationMacroCAS, nil), gocb.UpsertSpec("meta.seqno", gocb.MutationMacroSeqNo, nil),
			gocb.UpsertSpec("meta.crc", gocb.MutationMacroValueCRC32c, nil),
		)
		if err := first(err, err2); err != nil {
			return err
		}
		read, err := lookup(c, key,
			gocb.GetSpec("meta", xattr), gocb.GetSpec("$document", xattr), gocb.ExistsSpec("meta.owner", &gocb.ExistsSpecOptions{IsXattr: true}),
			gocb.GetSpec("meta.none", xattr), gocb.GetSpec("n", nil),
		)
		if err != nil {
			return err
		}
		var meta, virtual map[string]any
		var ignored any
		if err := first(must("meta", read.ContentAt(0, &meta)), must("$document", read.ContentAt(1, &virtual))); err != nil {
			return err
		}
		body, remove := "{\"n\":1}", gocb.RemoveSpec("meta", &gocb.RemoveSpecOptions{IsXattr: true})
		return first(
			equal("macro CAS", meta["cas"], any(fmt.Sprintf("0x%016x", bits.ReverseBytes64(uint64(changed.Cas()))))),
			equal("$document.CAS", virtual["CAS"], any(fmt.Sprintf("0x%016x", uint64(changed.Cas())))),
			equal("meta", []any{meta["owner"], meta["seqno"], meta["crc"]}, []any{"grüße", virtual["seqno"], virtual["value_crc32c"]}),
			equal("$document", []any{virtual["deleted"], virtual["exptime"], virtual["value_bytes"], virtual["datatype"]},
				[]any{false, 0.0, float64(len(body)), []any{"json", "xattr"}}),
			equal("exists", read.Exists(2), true), fails("a missing path", read.ContentAt(3, &ignored), gocb.ErrPathNotFound),
			content(c, key, number{1}), keepsAttribute(c, key),
			mutated(c, key, nil, remove), fails("remove", mutated(c, key, nil, remove), gocb.ErrPathNotFound), content(c, key, number{2}),
		)
	}},
}

// keepsAttribute requires that a store of the whole document keeps `meta.owner`.
func keepsAttribute(c *gocb.Collection, key string) error {
	_, err := upsert(c, key, number{2})
	found, err2 := lookup(c, key, gocb.GetSpec("meta.owner", &gocb.GetSpecOptions{IsXattr: true}))
	if err := first(err, err2); err != nil {
		return err
	}
	return values(found, "grüße")
}

func list(l *gocb.CouchbaseList) error {
	if err := first(l.Append("b"), l.Append("c"), l.Prepend("a")); err != nil {
		return err
	}
	var one string
	all, err := l.Iterator()
	at := l.At(1, &one)
	size, err2 := l.Size()
	index, err3 := l.IndexOf("c")
	none, err4 := l.IndexOf("x")
	beyond := l.At(7, &one)
	removed := l.RemoveAt(0)
	rest, err5 := l.Iterator()
	return first(
		err, at, err2, err3, err4, removed, err5, fails("at 7", beyond, gocb.ErrPathNotFound),
		equal("list", all, []any{"a", "b", "c"}), equal("reads", []any{one, size, index, none}, []any{"b", 3, 2, -1}), equal("rest", rest, []any{"b", "c"}),
	)
}

func dictionary(m *gocb.CouchbaseMap) error {
	if err := first(m.Add("one", 1), m.Add("two", number{2})); err != nil {
		return err
	}
	var two, one number
	at := m.At("two", &two)
	size, err := m.Size()
	yes, err2 := m.Exists("one")
	no, err3 := m.Exists("no")
	removed := m.Remove("one")
	keys, err4 := m.Keys()
	return first(
		at, err, err2, err3, removed, err4, fails("at one", m.At("one", &one), gocb.ErrPathNotFound),
		equal("map", []any{two, size, yes, no, keys}, []any{number{2}, 2, true, false, []string{"two"}}),
	)
}

func set(s *gocb.CouchbaseSet) error {
	if err := first(s.Add("a"), s.Add("b"), fails("add again", s.Add("a"), gocb.ErrPathExists)); err != nil {
		return err
	}
	size, err := s.Size()
	yes, err2 := s.Contains("b")
	no, err3 := s.Contains("c")
	removed := s.Remove("a")
	rest, err4 := s.Values()
	return first(err, err2, err3, removed, err4, equal("set", []any{size, yes, no, rest}, []any{2, true, false, []any{"b"}}))
}

func queue(q *gocb.CouchbaseQueue) error {
	var one, two int
	pushed := first(q.Push(1), q.Push(2))
	full, err := q.Size()
	popped := first(q.Pop(&one), q.Pop(&two))
	empty, err2 := q.Size()
	return first(pushed, err, popped, err2, equal("queue", []int{full, one, two, empty}, []int{2, 1, 2, 0}))
}

// staged inserts one document, replaces the second and removes the third.
func staged(attempt *gocb.TransactionAttemptContext, c *gocb.Collection, inserted, replaced, removed string) error {
	old, err := attempt.Get(c, replaced)
	if err != nil {
		return err
	}
	gone, err := attempt.Get(c, removed)
	if err != nil {
		return err
	}
	if _, err = attempt.Insert(c, inserted, number{1}); err != nil {
		return err
	}
	if _, err = attempt.Replace(old, number{2}); err != nil {
		return err
	}
	return attempt.Remove(gone)
}

// changes changes each document twice.
func changes(attempt *gocb.TransactionAttemptContext, c *gocb.Collection, gone, inserted, replaced, removed string) error {
	one, err := attempt.Get(c, replaced)
	if err != nil {
		return must("get replaced", err)
	}
	if one, err = attempt.Replace(one, number{2}); err != nil {
		return must("replace", err)
	}
	if _, err = attempt.Replace(one, number{3}); err != nil {
		return must("replace again", err)
	}
	if one, err = attempt.Get(c, removed); err != nil {
		return must("get removed", err)
	}
	if err = attempt.Remove(one); err != nil {
		return must("remove", err)
	}
	if _, err = attempt.Insert(c, removed, number{4}); err != nil {
		return must("insert a removed document", err)
	}
	if one, err = attempt.Insert(c, gone, number{5}); err != nil {
		return must("insert", err)
	}
	if err = attempt.Remove(one); err != nil {
		return must("remove an inserted document", err)
	}
	if one, err = attempt.Insert(c, inserted, number{6}); err != nil {
		return must("insert", err)
	}
	_, err = attempt.Replace(one, number{7})
	return must("replace an inserted document", err)
}

func inside(attempt *gocb.TransactionAttemptContext, c *gocb.Collection, key string, expected number) error {
	read, err := attempt.Get(c, key)
	if err != nil {
		return must("get inside", err)
	}
	var got number
	return first(must("content", read.Content(&got)), equal("inside", got, expected))
}

// failed requires an error of the type E.
func failed[E error](step string, err error) error {
	var kind E
	if !errors.As(err, &kind) {
		return fmt.Errorf("%s: %v, %T expected", step, err, kind)
	}
	return nil
}

func transactionChecks(transactions *gocb.Transactions) []check {
	return []check{
		{"transaction-commit", func(c *gocb.Collection, key string) error {
			replaced, removed := key+"-replaced", key+"-removed"
			_, err := upsert(c, replaced, number{1})
			_, err2 := upsert(c, removed, number{1})
			if err := first(err, err2); err != nil {
				return err
			}
			done, err := transactions.Run(func(attempt *gocb.TransactionAttemptContext) error {
				if err := staged(attempt, c, key, replaced, removed); err != nil {
					return err
				}
				_, gone := attempt.Get(c, removed)
				return first(
					inside(attempt, c, key, number{1}), inside(attempt, c, replaced, number{2}), fails("get inside", gone, gocb.ErrDocumentNotFound),
					missing(c, key), content(c, replaced, number{1}), content(c, removed, number{1}),
				)
			}, nil)
			if err != nil {
				return must("run", err)
			}
			return first(
				equal("unstaged", done.UnstagingComplete, true), content(c, key, number{1}), content(c, replaced, number{2}), missing(c, removed),
				unstaged(c, key), unstaged(c, replaced),
			)
		}},
		{"transaction-rollback", func(c *gocb.Collection, key string) error {
			replaced, removed := key+"-replaced", key+"-removed"
			_, err := upsert(c, replaced, number{1})
			_, err2 := upsert(c, removed, number{1})
			if err := first(err, err2); err != nil {
				return err
			}
			wanted := errors.New("rollback wanted")
			_, err = transactions.Run(func(attempt *gocb.TransactionAttemptContext) error {
				return first(must("staged", staged(attempt, c, key, replaced, removed)), wanted)
			}, nil)
			if err := first(
				failed[*gocb.TransactionFailedError]("run", err), fails("run", err, wanted),
				missing(c, key), content(c, replaced, number{1}), content(c, removed, number{1}), unstaged(c, replaced), unstaged(c, removed),
			); err != nil {
				return err
			}
			_, inserted := c.Insert(key, number{3}, nil)
			_, again := transactions.Run(func(attempt *gocb.TransactionAttemptContext) error {
				_, err := attempt.Insert(c, key, number{4})
				return err
			}, nil)
			return first(must("insert", inserted), fails("insert", again, gocb.ErrDocumentExists), content(c, key, number{3}))
		}},
		{"transaction-several-changes", func(c *gocb.Collection, key string) error {
			inserted, replaced, removed := key+"-inserted", key+"-replaced", key+"-removed"
			_, _ = c.Remove(inserted, nil)
			_, err := upsert(c, replaced, number{1})
			_, err2 := upsert(c, removed, number{1})
			if err := first(err, err2); err != nil {
				return err
			}
			_, err = transactions.Run(func(attempt *gocb.TransactionAttemptContext) error {
				return changes(attempt, c, key, inserted, replaced, removed)
			}, nil)
			return first(
				must("run", err), content(c, inserted, number{7}), content(c, replaced, number{3}), content(c, removed, number{4}), missing(c, key),
				unstaged(c, inserted), unstaged(c, replaced), unstaged(c, removed),
			)
		}},
		{"transaction-conflict", func(c *gocb.Collection, key string) error {
			const rounds = 10
			if _, err := upsert(c, key, number{0}); err != nil {
				return err
			}
			writer := func() error {
				for range rounds {
					_, err := transactions.Run(func(attempt *gocb.TransactionAttemptContext) error {
						read, err := attempt.Get(c, key)
						if err != nil {
							return err
						}
						var got number
						if err := read.Content(&got); err != nil {
							return err
						}
						_, err = attempt.Replace(read, number{got.N + 1})
						return err
					}, nil)
					if err != nil {
						return must("run", err)
					}
				}
				return nil
			}
			other := make(chan error)
			go func() { other <- writer() }()
			mine := writer()
			return first(mine, <-other, content(c, key, number{2 * rounds}), unstaged(c, key))
		}},
		{"transaction-expired", func(c *gocb.Collection, key string) error {
			replaced := key + "-replaced"
			if _, err := upsert(c, replaced, number{1}); err != nil {
				return err
			}
			_, err := transactions.Run(func(attempt *gocb.TransactionAttemptContext) error {
				old, err := attempt.Get(c, replaced)
				if err != nil {
					return err
				}
				_, err = attempt.Insert(c, key, number{1})
				_, err2 := attempt.Replace(old, number{2})
				time.Sleep(1500 * time.Millisecond)
				return first(err, err2)
			}, &gocb.TransactionOptions{Timeout: time.Second})
			invisible := first(missing(c, key), content(c, replaced, number{1}))
			_, inserted := c.Insert(key, number{2}, nil)
			return first(failed[*gocb.TransactionExpiredError]("run", err), invisible, must("insert", inserted))
		}},
	}
}

// withScope makes a scope with the given collections, runs use with them and drops the scope.
func withScope(c *gocb.Collection, key string, expiries map[string]time.Duration, use func(s *gocb.Scope, manager *gocb.CollectionManagerV2) error) error {
	// The SDK takes any error about an existing name for that of a collection if its text has the word "collection".
	manager, scope := c.Bucket().CollectionsV2(), strings.NewReplacer("::", "-", "collection-", "").Replace(key)
	_ = manager.DropScope(scope, nil)
	if err := manager.CreateScope(scope, nil); err != nil {
		return must("create scope", err)
	}
	for name, expiry := range expiries {
		if err := manager.CreateCollection(scope, name, &gocb.CreateCollectionSettings{MaxExpiry: expiry}, nil); err != nil {
			return must("create collection", err)
		}
	}
	return first(use(c.Bucket().Scope(scope), manager), must("drop scope", manager.DropScope(scope, nil)))
}

// listed compares the collections of a scope, with their maximum expiries.
func listed(manager *gocb.CollectionManagerV2, scope string, expected map[string]time.Duration) error {
	scopes, err := manager.GetAllScopes(nil)
	if err != nil {
		return must("scopes", err)
	}
	for _, one := range scopes {
		if one.Name == scope {
			got := map[string]time.Duration{}
			for _, collection := range one.Collections {
				got[collection.Name] = collection.MaxExpiry
			}
			return equal("collections", got, expected)
		}
	}
	return fmt.Errorf("scope %s is not listed", scope)
}

// fill stores 60 documents with the prefix and two without, and returns the state to be consistent with.
func fill(c *gocb.Collection, prefix string) (map[string]number, *gocb.MutationState, error) {
	state, documents := gocb.NewMutationState(), map[string]number{"a": {1}, "~": {2}}
	for n := range 60 {
		documents[fmt.Sprintf("%s-%02d", prefix, n)] = number{n}
	}
	for key, document := range documents {
		written, err := c.Upsert(key, document, nil)
		if err != nil {
			return nil, nil, must("upsert", err)
		}
		state.Add(*written.MutationToken())
	}
	return documents, state, nil
}

// scan returns the documents that are found; with IDsOnly they are empty.
func scan(c *gocb.Collection, kind gocb.ScanType, options gocb.ScanOptions) (map[string]number, error) {
	options.Concurrency = 64
	results, err := c.Scan(kind, &options)
	if err != nil {
		return nil, must("scan", err)
	}
	found := map[string]number{}
	for one := results.Next(); one != nil; one = results.Next() {
		var document number
		if !options.IDsOnly {
			if err := one.Content(&document); err != nil {
				return nil, must("content of "+one.ID(), err)
			}
		}
		if _, twice := found[one.ID()]; twice || one.IDOnly() != options.IDsOnly {
			return nil, fmt.Errorf("%s: twice: %t, id only: %t", one.ID(), twice, one.IDOnly())
		}
		found[one.ID()] = document
	}
	return found, must("results", results.Err())
}

// finds requires that a scan finds exactly these keys, with their documents unless only ids are wanted.
func finds(step string, c *gocb.Collection, kind gocb.ScanType, options gocb.ScanOptions, documents map[string]number, keys ...string) error {
	expected := map[string]number{}
	for _, key := range keys {
		if expected[key] = documents[key]; options.IDsOnly {
			expected[key] = number{}
		}
	}
	found, err := scan(c, kind, options)
	return first(must(step, err), equal(step, found, expected))
}

// samples requires that a scan returns so many documents out of those.
func samples(c *gocb.Collection, kind gocb.SamplingScan, options gocb.ScanOptions, documents map[string]number) error {
	found, err := scan(c, kind, options)
	for key, document := range found {
		expected, known := documents[key]
		if !known || !options.IDsOnly && document != expected {
			return fmt.Errorf("%s: %v", key, document)
		}
	}
	return first(err, equal("samples", uint64(len(found)), kind.Limit))
}

var collectionChecks = []check{
	{"collection-manage", func(c *gocb.Collection, key string) error {
		expiries := map[string]time.Duration{"plain": 0, "timed": 100 * time.Second}
		return withScope(c, key, expiries, func(s *gocb.Scope, manager *gocb.CollectionManagerV2) error {
			scope, missing := s.Name(), s.Name()+"-missing"
			settings := gocb.UpdateCollectionSettings{MaxExpiry: 7 * time.Second}
			return first(
				listed(manager, scope, expiries),
				fails("scope again", manager.CreateScope(scope, nil), gocb.ErrScopeExists),
				fails("collection again", manager.CreateCollection(scope, "plain", nil, nil), gocb.ErrCollectionExists),
				fails("in a missing scope", manager.CreateCollection(missing, "plain", nil, nil), gocb.ErrScopeNotFound),
				fails("a reserved name", manager.CreateScope("_reserved", nil), gocb.ErrInvalidArgument),
				must("update", manager.UpdateCollection(scope, "plain", settings, nil)),
				must("update", manager.UpdateCollection(scope, "timed", gocb.UpdateCollectionSettings{MaxExpiry: -time.Second}, nil)),
				listed(manager, scope, map[string]time.Duration{"plain": 7 * time.Second, "timed": -time.Second}),
				fails("update a missing one", manager.UpdateCollection(scope, "missing", settings, nil), gocb.ErrCollectionNotFound),
				must("drop", manager.DropCollection(scope, "plain", nil)),
				listed(manager, scope, map[string]time.Duration{"timed": -time.Second}),
				fails("drop again", manager.DropCollection(scope, "plain", nil), gocb.ErrCollectionNotFound),
				fails("drop in a missing scope", manager.DropCollection(missing, "plain", nil), gocb.ErrScopeNotFound),
				fails("drop a missing scope", manager.DropScope(missing, nil), gocb.ErrScopeNotFound),
			)
		})
	}},
	{"collection-documents", func(c *gocb.Collection, key string) error {
		return withScope(c, key, map[string]time.Duration{"one": 0, "other": 0}, func(s *gocb.Scope, manager *gocb.CollectionManagerV2) error {
			one, other := s.Collection("one"), s.Collection("other")
			_, err := upsert(c, key, number{0})
			_, err2 := one.Insert(key, number{1}, nil)
			_, err3 := other.Insert(key, number{2}, nil)
			if err := first(err, err2, err3, content(c, key, number{0}), content(one, key, number{1})); err != nil {
				return err
			}
			changed, err := mutate(one, key, nil, gocb.IncrementSpec("n", 4, nil), gocb.UpsertSpec("more", 1, nil))
			found, err2 := lookup(one, key, gocb.GetSpec("n", nil))
			if err := first(err, err2, values(changed, 5.0), values(found, 5.0)); err != nil {
				return err
			}
			counted := first(
				counter("initial", 10)(one.Binary().Increment("counter", &gocb.IncrementOptions{Initial: 10, Delta: 5})),
				counter("increment", 15)(one.Binary().Increment("counter", &gocb.IncrementOptions{Initial: -1, Delta: 5})),
				missing(c, "counter"),
			)
			_, removed := one.Remove(key, nil)
			if err := first(counted, removed, missing(one, key), content(c, key, number{0}), content(other, key, number{2})); err != nil {
				return err
			}
			dropped := manager.DropCollection(s.Name(), "one", nil)
			_, read := one.Get("counter", &gocb.GetOptions{Timeout: 2 * time.Second})
			_, written := one.Upsert(key, number{1}, &gocb.UpsertOptions{Timeout: 2 * time.Second})
			if err := first(
				must("drop", dropped), fails("get", read, gocb.ErrCollectionNotFound, gocb.ErrTimeout),
				fails("upsert", written, gocb.ErrCollectionNotFound, gocb.ErrTimeout),
			); err != nil {
				return err
			}
			// The new collection of that name has none of the old documents.
			created, old := manager.CreateCollection(s.Name(), "one", nil, nil), missing(one, "counter")
			_, err = upsert(one, key, number{3})
			return first(must("create again", created), old, err, content(one, key, number{3}), content(other, key, number{2}))
		})
	}},
	{"key-too-long", func(c *gocb.Collection, key string) error {
		return withScope(c, key, map[string]time.Duration{"one": 0}, func(s *gocb.Scope, _ *gocb.CollectionManagerV2) error {
			for documents, most := range map[*gocb.Collection]int{c: 250, s.Collection("one"): 246} {
				// Its bytes count, not its characters.
				longest := strings.Repeat("ü", most/2)
				_, err := upsert(documents, longest, number{1})
				_, refused := upsert(documents, longest+"k", number{2})
				if err := first(err, fails("a longer key", refused, gocb.ErrValueTooLarge), content(documents, longest, number{1})); err != nil {
					return err
				}
			}
			return nil
		})
	}},
	{"collection-max-expiry", func(c *gocb.Collection, key string) error {
		return withScope(c, key, map[string]time.Duration{"timed": 100 * time.Second}, func(s *gocb.Scope, _ *gocb.CollectionManagerV2) error {
			timed := s.Collection("timed")
			for asked, expected := range map[time.Duration]time.Duration{0: 100, 50: 50, 900: 100} {
				_, err := timed.Upsert(key, number{1}, &gocb.UpsertOptions{Expiry: asked * time.Second})
				if err := first(must("upsert", err), expires(timed, key, expected)); err != nil {
					return err
				}
			}
			_, err := upsert(c, key, number{1})
			at, err2 := expiry(c, key)
			return first(err, err2, equal("expiry", at, time.Time{}))
		})
	}},
	{"scan-range", func(c *gocb.Collection, key string) error {
		return withScope(c, key, map[string]time.Duration{"scanned": 0, "other": 0}, func(s *gocb.Scope, _ *gocb.CollectionManagerV2) error {
			scanned := s.Collection("scanned")
			documents, state, err := fill(scanned, key)
			_, _, err2 := fill(s.Collection("other"), "other")
			if err := first(err, err2); err != nil {
				return err
			}
			keys := []string{}
			for n := range 60 {
				keys = append(keys, fmt.Sprintf("%s-%02d", key, n))
			}
			full, ids := gocb.ScanOptions{ConsistentWith: state}, gocb.ScanOptions{ConsistentWith: state, IDsOnly: true}
			between := func(from, to int, exclusive bool) gocb.RangeScan {
				return gocb.RangeScan{From: &gocb.ScanTerm{Term: keys[from], Exclusive: exclusive}, To: &gocb.ScanTerm{Term: keys[to]}}
			}
			return first(
				finds("prefix", scanned, gocb.NewRangeScanForPrefix(key+"-"), full, documents, keys...),
				finds("range", scanned, between(0, 59, false), full, documents, keys...),
				finds("ids", scanned, between(10, 20, true), ids, documents, keys[11:21]...),
				finds("all", scanned, gocb.RangeScan{}, full, documents, append(keys, "a", "~")...),
				finds("none", scanned, gocb.NewRangeScanForPrefix("none"), full, documents),
			)
		})
	}},
	{"scan-sampling", func(c *gocb.Collection, key string) error {
		return withScope(c, key, map[string]time.Duration{"scanned": 0}, func(s *gocb.Scope, _ *gocb.CollectionManagerV2) error {
			scanned := s.Collection("scanned")
			documents, _, err := fill(scanned, key)
			if err != nil {
				return err
			}
			_, refused := scanned.Scan(gocb.SamplingScan{}, nil)
			return first(
				samples(scanned, gocb.SamplingScan{Limit: 20}, gocb.ScanOptions{}, documents),
				samples(scanned, gocb.SamplingScan{Limit: 20, Seed: 7}, gocb.ScanOptions{IDsOnly: true}, documents),
				fails("no limit", refused, gocb.ErrInvalidArgument),
			)
		})
	}},
}

// has requires that the bucket has the given settings.
func has(manager *gocb.BucketManager, expected gocb.BucketSettings) error {
	got, err := manager.GetBucket(expected.Name, nil)
	if err != nil {
		return must("get bucket", err)
	}
	return equal("settings",
		[]any{got.BucketType, got.RAMQuotaMB, got.EvictionPolicy, got.NumReplicas, got.MaxExpiry, got.MinimumDurabilityLevel, got.FlushEnabled},
		[]any{expected.BucketType, expected.RAMQuotaMB, expected.EvictionPolicy, expected.NumReplicas, expected.MaxExpiry,
			expected.MinimumDurabilityLevel, expected.FlushEnabled},
	)
}

func bucketChecks(cluster *gocb.Cluster) []check {
	return []check{{"bucket-settings", func(_ *gocb.Collection, key string) error {
		const name = "go-settings"
		manager := cluster.Buckets()
		_ = manager.DropBucket(name, nil)
		settings := gocb.BucketSettings{
			Name: name, BucketType: gocb.EphemeralBucketType, RAMQuotaMB: 120, EvictionPolicy: gocb.EvictionPolicyTypeNoEviction,
			MaxExpiry: 100 * time.Second, MinimumDurabilityLevel: gocb.DurabilityLevelMajority,
		}
		created := manager.CreateBucket(gocb.CreateBucketSettings{BucketSettings: settings}, nil)
		again := manager.CreateBucket(gocb.CreateBucketSettings{BucketSettings: settings}, nil)
		if err := first(must("create", created), has(manager, settings), fails("create again", again, gocb.ErrBucketExists)); err != nil {
			return err
		}
		documents := cluster.Bucket(name).DefaultCollection()
		_, err := upsert(documents, key, number{1})
		if err := first(
			err, expires(documents, key, 100), fails("flush", manager.FlushBucket(name, nil), gocb.ErrBucketNotFlushable), content(documents, key, number{1}),
		); err != nil {
			return err
		}
		settings.RAMQuotaMB, settings.MaxExpiry, settings.FlushEnabled = 100, 200*time.Second, true
		refused := settings
		refused.Name, refused.MinimumDurabilityLevel = name+"-refused", gocb.DurabilityLevelPersistToMajority
		if err := first(
			must("update", manager.UpdateBucket(settings, nil)), has(manager, settings), must("flush", manager.FlushBucket(name, nil)), missing(documents, key),
			fails("persist", manager.CreateBucket(gocb.CreateBucketSettings{BucketSettings: refused}, nil), gocb.ErrInvalidArgument),
			must("drop", manager.DropBucket(name, nil)),
		); err != nil {
			return err
		}
		_, gone := manager.GetBucket(name, nil)
		return first(
			fails("get a missing one", gone, gocb.ErrBucketNotFound), fails("drop a missing one", manager.DropBucket(name, nil), gocb.ErrBucketNotFound),
			fails("flush a missing one", manager.FlushBucket(name, nil), gocb.ErrBucketNotFound),
		)
	}}, {"persistent-bucket", func(_ *gocb.Collection, key string) error {
		const name = "go-persistent"
		manager := cluster.Buckets()
		_ = manager.DropBucket(name, nil)
		settings := gocb.BucketSettings{
			Name: name, BucketType: gocb.CouchbaseBucketType, RAMQuotaMB: 100, EvictionPolicy: gocb.EvictionPolicyTypeValueOnly,
		}
		if err := manager.CreateBucket(gocb.CreateBucketSettings{BucketSettings: settings}, nil); err != nil {
			return must("create", err)
		}
		documents := cluster.Bucket(name).DefaultCollection()
		_, err := documents.Upsert(key, number{1}, &gocb.UpsertOptions{DurabilityLevel: gocb.DurabilityLevelPersistToMajority})
		all, err2 := manager.GetAllBuckets(nil)
		if err := first(
			must("upsert", err), content(documents, key, number{1}), must("all buckets", err2),
			equal("its type", all[name].BucketType, gocb.CouchbaseBucketType), must("drop", manager.DropBucket(name, nil)),
		); err != nil {
			return err
		}
		_, gone := manager.GetBucket(name, nil)
		return fails("get a dropped one", gone, gocb.ErrBucketNotFound)
	}}}
}

// origins returns the roles of a user, each with where it comes from.
func origins(manager *gocb.UserManager, name string) (map[gocb.Role][]gocb.Origin, error) {
	user, err := manager.GetUser(name, nil)
	if err != nil {
		return nil, must("get user", err)
	}
	found := map[gocb.Role][]gocb.Origin{}
	for _, role := range user.EffectiveRoles {
		found[role.Role] = role.Origins
	}
	return found, nil
}

func userNames(manager *gocb.UserManager) (map[string]bool, error) {
	users, err := manager.GetAllUsers(nil)
	found := map[string]bool{}
	for _, user := range users {
		found[user.Username] = user.Domain == gocb.LocalDomain
	}
	return found, must("all users", err)
}

func roleNames(manager *gocb.UserManager) (map[string]bool, error) {
	roles, err := manager.GetRoles(nil)
	found := map[string]bool{}
	for _, role := range roles {
		found[role.Name] = role.DisplayName != "" && role.Description != ""
	}
	return found, must("roles", err)
}

// login opens the bucket as another user.
type login func(user, password string) (*gocb.Cluster, *gocb.Collection, error)

func userChecks(cluster *gocb.Cluster, bucket string, connected login) []check {
	const password = "correct-horse-battery"
	manager, own := cluster.Users(), []gocb.Origin{{Type: "user"}}
	reader, writer := gocb.Role{Name: "data_reader", Bucket: bucket}, gocb.Role{Name: "data_writer", Bucket: bucket}
	refused := func(step string, user gocb.User, word string) error {
		err := manager.UpsertUser(user, nil)
		if err == nil || !strings.Contains(err.Error(), word) {
			return fmt.Errorf("%s: %v, an error with %q expected", step, err, word)
		}
		return nil
	}
	return []check{
		{"user-manage", func(_ *gocb.Collection, key string) error {
			name := strings.ReplaceAll(key, "::", "-")
			_ = manager.DropUser(name, nil)
			_, before := manager.GetUser(name, nil)
			scoped := gocb.Role{Name: "data_writer", Bucket: bucket, Scope: "_default"}
			user := gocb.User{Username: name, DisplayName: "Grüße", Password: password, Roles: []gocb.Role{reader, scoped}}
			made := manager.UpsertUser(user, nil)
			shown, err := manager.GetUser(name, nil)
			if err := first(fails("get before", before, gocb.ErrUserNotFound), must("upsert", made), must("get", err)); err != nil {
				return err
			}
			roles, err := origins(manager, name)
			names, err2 := userNames(manager)
			known, err3 := roleNames(manager)
			if err := first(
				err, err2, err3,
				equal("user", []any{shown.Domain, shown.Username, shown.DisplayName, len(shown.Groups), shown.PasswordChanged.IsZero()},
					[]any{gocb.LocalDomain, name, "Grüße", 0, false}),
				equal("roles", roles, map[gocb.Role][]gocb.Origin{reader: own, scoped: own}),
				equal("listed", []bool{names[name], names["Administrator"]}, []bool{true, false}),
				equal("known", []bool{known["admin"], known["bucket_admin"], known["data_reader"], known["none"]}, []bool{true, true, true, false}),
			); err != nil {
				return err
			}
			changed := manager.UpsertUser(gocb.User{Username: name, Roles: []gocb.Role{{Name: "ro_admin"}}}, nil)
			roles, err = origins(manager, name)
			short, superman := user, user
			short.Password, superman.Roles = "short", []gocb.Role{{Name: "superman"}}
			configured := gocb.User{Username: "Administrator", Password: password, Roles: []gocb.Role{reader}}
			if err := first(
				must("change", changed), err, equal("roles", roles, map[gocb.Role][]gocb.Origin{{Name: "ro_admin"}: own}),
				refused("a short password", short, "password"), refused("an unknown role", superman, "superman"), refused("the administrator", configured, "configuration"),
				must("drop", manager.DropUser(name, nil)), fails("drop again", manager.DropUser(name, nil), gocb.ErrUserNotFound),
			); err != nil {
				return err
			}
			_, after := manager.GetUser(name, nil)
			return fails("get after", after, gocb.ErrUserNotFound)
		}},
		{"group-manage", func(_ *gocb.Collection, key string) error {
			name := strings.ReplaceAll(key, "::", "-")
			_, _ = manager.DropUser(name, nil), manager.DropGroup(name, nil)
			_, before := manager.GetGroup(name, nil)
			group := gocb.Group{Name: name, Description: "readers", Roles: []gocb.Role{reader}, LDAPGroupReference: "cn=readers"}
			made := manager.UpsertGroup(group, nil)
			shown, err := manager.GetGroup(name, nil)
			all, err2 := manager.GetAllGroups(nil)
			if err := first(
				fails("get before", before, gocb.ErrGroupNotFound), must("upsert", made), must("get", err), must("all groups", err2),
				equal("group", shown, &group), equal("listed", slices.ContainsFunc(all, func(one gocb.Group) bool { return one.Name == name }), true),
				refused("a missing group", gocb.User{Username: name, Password: password, Groups: []string{name + "-missing"}}, "-missing"),
				must("member", manager.UpsertUser(gocb.User{Username: name, Password: password, Groups: []string{name}, Roles: []gocb.Role{reader, writer}}, nil)),
			); err != nil {
				return err
			}
			roles, err := origins(manager, name)
			unknown := manager.UpsertGroup(gocb.Group{Name: name, Roles: []gocb.Role{{Name: "superman"}}}, nil)
			if err := first(
				err, equal("roles", roles, map[gocb.Role][]gocb.Origin{reader: {{Type: "user"}, {Type: "group", Name: name}}, writer: own}),
				equal("an unknown role is refused", unknown != nil, true),
				must("drop", manager.DropGroup(name, nil)), fails("drop again", manager.DropGroup(name, nil), gocb.ErrGroupNotFound),
			); err != nil {
				return err
			}
			roles, err = origins(manager, name)
			return first(err, equal("roles", roles, map[gocb.Role][]gocb.Origin{reader: own, writer: own}), must("drop user", manager.DropUser(name, nil)))
		}},
		{"role-enforced", func(c *gocb.Collection, key string) error {
			name := strings.ReplaceAll(key, "::", "-")
			_, err := upsert(c, key, number{1})
			made := manager.UpsertUser(gocb.User{Username: name, Password: password, Roles: []gocb.Role{reader}}, nil)
			if err := first(err, must("upsert user", made)); err != nil {
				return err
			}
			its, documents, err := connected(name, password)
			if err != nil {
				return must("connect", err)
			}
			_, written := documents.Upsert(key, number{2}, nil)
			_, system := lookup(documents, key, gocb.GetSpec("_system", &gocb.GetSpecOptions{IsXattr: true}))
			_, users := its.Users().GetAllUsers(nil)
			granted := first(
				content(documents, key, number{1}), fails("upsert", written, gocb.ErrAuthenticationFailure), content(c, key, number{1}),
				fails("mutate", mutated(documents, key, nil, gocb.UpsertSpec("n", 2, nil)), gocb.ErrAuthenticationFailure),
				fails("a system attribute", system, gocb.ErrAuthenticationFailure), equal("users are hidden", users != nil, true),
				must("grant", manager.UpsertUser(gocb.User{Username: name, Roles: []gocb.Role{writer}}, nil)),
			)
			_, written = documents.Upsert(key, number{3}, nil)
			_, read := documents.Get(key, nil)
			dropped := first(
				granted, must("upsert", written), fails("get", read, gocb.ErrAuthenticationFailure), content(c, key, number{3}),
				must("drop", manager.DropUser(name, nil)),
			)
			_, written = documents.Upsert(key, number{4}, nil)
			return first(dropped, fails("upsert after the drop", written, gocb.ErrAuthenticationFailure), content(c, key, number{3}), must("close", its.Close(nil)))
		}},
		{"change-password", func(c *gocb.Collection, key string) error {
			name, changed := strings.ReplaceAll(key, "::", "-"), password+"-changed"
			_, err := upsert(c, key, number{1})
			made := manager.UpsertUser(gocb.User{Username: name, Password: password, Roles: []gocb.Role{reader}}, nil)
			if err := first(err, must("upsert user", made)); err != nil {
				return err
			}
			its, _, err := connected(name, password)
			if err != nil {
				return must("connect", err)
			}
			done, again := its.Users().ChangePassword(changed, nil), its.Users().ChangePassword("never-set", nil)
			var refusal *gocb.HTTPError
			if err := first(
				must("change", done), must("close", its.Close(nil)),
				equal(fmt.Sprintf("the old password is refused (%v)", again), errors.As(again, &refusal) && refusal.StatusCode == 401, true),
			); err != nil {
				return err
			}
			its, documents, err := connected(name, changed)
			if err != nil {
				return must("connect again", err)
			}
			return first(content(documents, key, number{1}), must("close", its.Close(nil)), must("drop", manager.DropUser(name, nil)))
		}},
	}
}

// answers requires that all endpoints of each service have answered.
func answers(step string, pinged *gocb.PingResult, services ...gocb.ServiceType) error {
	for _, service := range services {
		reports := pinged.Services[service]
		if len(reports) == 0 || slices.ContainsFunc(reports, func(one gocb.EndpointPingReport) bool { return one.State != gocb.PingStateOk }) {
			return fmt.Errorf("%s: service %d: %+v", step, service, reports)
		}
	}
	return nil
}

// pingCheck has a connection of its own: the buckets of other checks come and go.
func pingCheck(user, password string, connected login) check {
	return check{"ping", func(*gocb.Collection, string) error {
		own, documents, err := connected(user, password)
		if err != nil {
			return must("connect", err)
		}
		pinged, err := own.Ping(nil)
		bucket, err2 := documents.Bucket().Ping(nil)
		known, err3 := own.Diagnostics(nil)
		if err := first(must("ping", err), must("ping the bucket", err2), must("diagnostics", err3)); err != nil {
			return err
		}
		isConnected := func(one gocb.EndPointDiagnostics) bool { return one.State == gocb.EndpointStateConnected }
		return first(
			// The SDK pings the key-value service of buckets only.
			answers("cluster", pinged, gocb.ServiceTypeManagement),
			answers("bucket", bucket, gocb.ServiceTypeKeyValue, gocb.ServiceTypeManagement),
			equal("connected", slices.ContainsFunc(known.Services["kv"], isConnected), true), must("close", own.Close(nil)),
		)
	}}
}

func say(name string, err error) {
	if err != nil {
		fmt.Printf("not ok %s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	fmt.Printf("ok %s\n", name)
}

// trusted returns a pool with the certificates of the given file, if there is one.
func trusted(files []string) (*x509.CertPool, error) {
	if len(files) == 0 {
		return nil, nil
	}
	pem, err := os.ReadFile(files[0])
	pool := x509.NewCertPool()
	if err == nil && !pool.AppendCertsFromPEM(pem) {
		err = fmt.Errorf("%s: no certificate", files[0])
	}
	return pool, err
}

func connect(address, user, password, bucket string, authority []string) (*gocb.Cluster, *gocb.Collection, error) {
	pool, err := trusted(authority)
	if err != nil {
		return nil, nil, err
	}
	cluster, err := gocb.Connect(address, gocb.ClusterOptions{
		Authenticator:  gocb.PasswordAuthenticator{Username: user, Password: password},
		TimeoutsConfig: gocb.TimeoutsConfig{KVTimeout: 8 * time.Second, KVDurableTimeout: 8 * time.Second},
		SecurityConfig: gocb.SecurityConfig{TLSRootCAs: pool},
	})
	if err != nil {
		return nil, nil, err
	}
	opened := cluster.Bucket(bucket)
	for _, service := range []gocb.ServiceType{gocb.ServiceTypeKeyValue, gocb.ServiceTypeManagement} {
		ready := opened.WaitUntilReady(10*time.Second, &gocb.WaitUntilReadyOptions{ServiceTypes: []gocb.ServiceType{service}})
		err = first(err, must(fmt.Sprintf("service %d", service), ready))
	}
	return cluster, opened.DefaultCollection(), err
}

func main() {
	cluster, collection, err := connect(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5:])
	say("connect", err)
	if collection == nil {
		os.Exit(1)
	}
	other := func(user, password string) (*gocb.Cluster, *gocb.Collection, error) {
		return connect(os.Args[1], user, password, os.Args[4], os.Args[5:])
	}
	var running sync.WaitGroup
	all := slices.Concat(
		checks, collectionChecks, bucketChecks(cluster), userChecks(cluster, os.Args[4], other), transactionChecks(cluster.Transactions()),
		[]check{pingCheck(os.Args[2], os.Args[3], other)},
	)
	for _, one := range all {
		if only := os.Getenv("CHECK"); only != "" && only != one.name {
			continue
		}
		running.Go(func() {
			key := "go::" + one.name
			_, _ = collection.Remove(key, nil)
			say(one.name, one.run(collection, key))
		})
	}
	running.Wait()
	say("close", cluster.Close(nil))
}
