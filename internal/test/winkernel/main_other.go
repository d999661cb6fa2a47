//go:build !windows

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "winkernel: needs Windows, or Wine")
	os.Exit(1)
}
