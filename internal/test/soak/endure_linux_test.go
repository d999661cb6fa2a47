package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
)

// flags are those of the command, for a machine that runs tests only: the virtual one that has
// IPVS.
var flags options

func TestMain(m *testing.M) {
	flags.register(flag.CommandLine)
	flag.Parse()
	if flag.Arg(0) == "writer" { // which this program starts of itself
		fmt.Fprintln(os.Stderr, "endure:", commands["writer"](context.Background(), &flags))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// The command runs as a test.
func TestEndures(t *testing.T) {
	run := commands[flag.Arg(0)]
	if run == nil {
		t.Skip("takes long: give it the arguments of endure")
	}
	if err := run(t.Context(), &flags); err != nil {
		t.Fatal(err)
	}
}
