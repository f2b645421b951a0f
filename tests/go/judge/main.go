// Judges histories of single keys with porcupine: whether what clients were answered is what one register would have
// answered, in some order that respects time.
// usage: judge FILE
//
// The file has {KEY: [OPERATION, ...]}. An operation has a client, the times of its call and its return, what was asked
// (get, set, add, cas, delete, with the value that is written, and the one that cas expects), and the answer: done,
// missing, exists, or unknown, of one that may have happened at any time since, or never. Each value is written once.
// The output has {KEY: "ok" | "illegal" | "undecided"}.
package main

import (
	"encoding/json"
	"log"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

const patience = 60 * time.Second

type input struct {
	Kind     string `json:"kind"`
	Value    string `json:"value"`
	Expected string `json:"expected"`
}

type output struct {
	Answer string `json:"answer"`
	Found  string `json:"found"`
}

type operation struct {
	Client   int   `json:"client"`
	Called   int64 `json:"called"`
	Returned int64 `json:"returned"`
	input
	output
}

// The state is the present value; "" is a document that is not there.
var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, in, out any) (bool, any) {
		present, asked, got := state.(string), in.(input), out.(output)
		after, does := effect(present, asked)
		switch got.Answer {
		case "unknown":
			// It returns after everything else, where it may as well not have happened.
			return true, after
		case "done":
			return does && (asked.Kind != "get" || got.Found == present), after
		case "missing":
			return present == "" && asked.Kind != "set" && asked.Kind != "add", present
		case "exists":
			isOther := asked.Kind == "cas" && present != asked.Expected
			return present != "" && (asked.Kind == "add" || isOther), present
		}
		log.Fatalf("unknown answer %q", got.Answer)
		return false, nil
	},
}

// The value after an operation, and whether it is done at all.
func effect(present string, asked input) (string, bool) {
	switch asked.Kind {
	case "get":
		return present, present != ""
	case "set":
		return asked.Value, true
	case "add":
		if present == "" {
			return asked.Value, true
		}
	case "cas":
		if present != "" && present == asked.Expected {
			return asked.Value, true
		}
	case "delete":
		if present != "" {
			return "", true
		}
	}
	return present, false
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var histories map[string][]operation
	if err := json.Unmarshal(text, &histories); err != nil {
		log.Fatal(err)
	}
	verdicts := map[string]string{}
	for key, operations := range histories {
		history := []porcupine.Operation{}
		for _, one := range operations {
			history = append(history, porcupine.Operation{
				ClientId: one.Client, Input: one.input, Output: one.output, Call: one.Called, Return: one.Returned,
			})
		}
		switch porcupine.CheckOperationsTimeout(register, history, patience) {
		case porcupine.Ok:
			verdicts[key] = "ok"
		case porcupine.Illegal:
			verdicts[key] = "illegal"
		default:
			verdicts[key] = "undecided"
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(verdicts); err != nil {
		log.Fatal(err)
	}
}
