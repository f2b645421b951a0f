// Performs what it reads, one request per line, and answers each with a line.
// usage: replicas CONNECTION USER PASSWORD BUCKET
//
//	set KEY VALUE LEVEL   ok
//	get KEY               ok VALUE
//	any KEY               ok VALUE active|replica
//	all KEY               ok VALUE:active VALUE:replica ...
//
// What fails is answered with "error" and the reason.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/couchbase/gocb/v2"
)

const timeout = 3 * time.Second

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func role(isReplica bool) string {
	if isReplica {
		return "replica"
	}
	return "active"
}

func perform(c *gocb.Collection, words []string) (string, error) {
	var value string
	switch key := words[1]; words[0] {
	case "set":
		options := gocb.UpsertOptions{Timeout: timeout}
		if words[3] == "majority" {
			options.DurabilityLevel = gocb.DurabilityLevelMajority
		}
		_, err := c.Upsert(key, words[2], &options)
		return "", err
	case "get":
		read, err := c.Get(key, &gocb.GetOptions{Timeout: timeout})
		if err == nil {
			err = read.Content(&value)
		}
		return value, err
	case "any":
		read, err := c.GetAnyReplica(key, &gocb.GetAnyReplicaOptions{Timeout: timeout})
		if err == nil {
			err = read.Content(&value)
		}
		if err != nil {
			return "", err
		}
		return value + " " + role(read.IsReplica()), nil
	case "all":
		stream, err := c.GetAllReplicas(key, &gocb.GetAllReplicaOptions{Timeout: timeout})
		if err != nil {
			return "", err
		}
		found := []string{}
		for read := stream.Next(); read != nil; read = stream.Next() {
			if err := read.Content(&value); err != nil {
				return "", err
			}
			found = append(found, value+":"+role(read.IsReplica()))
		}
		sort.Strings(found)
		return strings.Join(found, " "), stream.Close()
	}
	return "", fmt.Errorf("unknown request %v", words)
}

func main() {
	login := gocb.PasswordAuthenticator{Username: os.Args[2], Password: os.Args[3]}
	cluster, err := gocb.Connect(os.Args[1], gocb.ClusterOptions{Authenticator: login})
	must(err)
	bucket := cluster.Bucket(os.Args[4])
	must(bucket.WaitUntilReady(20*time.Second, nil))
	for requests := bufio.NewScanner(os.Stdin); requests.Scan(); {
		answer, err := perform(bucket.DefaultCollection(), strings.Fields(requests.Text()))
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		} else {
			answer = strings.TrimSpace("ok " + answer)
		}
		fmt.Println(answer)
	}
}
