//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr,
		"guestinit: not supported: it is the init program of a Linux virtual machine")
	os.Exit(1)
}
