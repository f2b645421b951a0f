// Stores and reads a document, then queries; prints the document and the query's error.
// usage: reach CONNECTION USER PASSWORD BUCKET
package main

import (
	"fmt"
	"log"
	"os"
	"time"

	"github.com/couchbase/gocb/v2"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	login := gocb.PasswordAuthenticator{Username: os.Args[2], Password: os.Args[3]}
	cluster, err := gocb.Connect(os.Args[1], gocb.ClusterOptions{Authenticator: login})
	must(err)
	must(cluster.WaitUntilReady(20*time.Second, nil))
	bucket := cluster.Bucket(os.Args[4])
	must(bucket.WaitUntilReady(20*time.Second, nil))
	_, err = bucket.DefaultCollection().Upsert("reached", map[string]string{"by": "Go"}, nil)
	must(err)
	read, err := bucket.DefaultCollection().Get("reached", nil)
	must(err)
	var document map[string]string
	must(read.Content(&document))
	fmt.Println("reached by", document["by"])
	_, err = cluster.Query("SELECT 1", nil)
	fmt.Println(err)
}
