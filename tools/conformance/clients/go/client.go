// Package client has what the clients in Go share: the loop of messages, and errors as panics.
package client

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

// Object is a JSON object.
type Object = map[string]any

// Refusal is the panic of an error that the library reported; other panics end the client.
type Refusal struct{ Err error }

// Refuse ends an operation with an error.
func Refuse(err error) { panic(Refusal{err}) }

// Check ends an operation if there is an error.
func Check(err error) {
	if err != nil {
		Refuse(err)
	}
}

// Must returns a value, or ends an operation with the error.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// RefusePanics, deferred, ends an operation with an error if the library reports errors as panics; runtime
// errors stay panics.
func RefusePanics() {
	switch found := recover().(type) {
	case nil:
	case runtime.Error, Refusal:
		panic(found)
	default:
		Refuse(fmt.Errorf("panic: %v", found))
	}
}

// Serve answers messages on standard output, and only those, until `stop` or the end of input.
func Serve(started Object, read, write func(Object) Object) {
	lines, answers := bufio.NewReader(os.Stdin), os.Stdout
	os.Stdout = os.Stderr // what libraries print must not stand among the answers
	started["type"], started["protocol"] = "started", 1
	operations := map[any]func(Object) Object{"read": read, "write": write}
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var message Object
		if json.Unmarshal(line, &message) != nil || message["type"] == "stop" {
			return
		}
		answer := started
		if message["type"] != "start" {
			answer = attempt(operations[message["type"]], message)
			answer["type"], answer["id"] = "result", message["id"]
		}
		encoded, _ := json.Marshal(answer)
		answers.Write(append(encoded, '\n'))
	}
}

func attempt(operation func(Object) Object, message Object) (result Object) {
	defer func() {
		found := recover()
		refusal, refused := found.(Refusal)
		if found != nil && !refused {
			panic(found)
		}
		if refused && errors.Is(refusal.Err, errors.ErrUnsupported) {
			result = Object{"outcome": "unsupported", "message": refusal.Err.Error()}
		} else if refused {
			result = Object{"outcome": "error", "message": refusal.Err.Error()}
		}
	}()
	return operation(message)
}

// Version returns the version of a module that the client was built with.
func Version(path string) string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == path {
			return module.Version
		}
	}
	return "unknown"
}

// Raw returns the bytes of hex, none for null.
func Raw(value any) []byte {
	text, _ := value.(string)
	data, _ := hex.DecodeString(text)
	return data
}
