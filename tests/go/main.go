// The checks of tests/clients/checks.py through the Couchbase SDK for Go.
// usage: checks CONNECTION USER PASSWORD BUCKET [AUTHORITY]; prints `ok NAME` or `not ok NAME: reason`.
package main

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"reflect"
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
	var running sync.WaitGroup
	for _, one := range checks {
		running.Go(func() {
			key := "go::" + one.name
			_, _ = collection.Remove(key, nil)
			say(one.name, one.run(collection, key))
		})
	}
	running.Wait()
	_ = cluster.Close(nil)
}
