package main

import (
	"path/filepath"
	"testing"

	"github.com/kernlb/kernlb/internal/test/nstest"
)

// Each file of testdata/node is a story of a node, in a network namespace of its own.
func TestNodes(t *testing.T) {
	t.Parallel()
	for _, path := range ok(filepath.Glob("testdata/node/*.txt"))(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			transcript(t, path, nstest.New(t).Do)
		})
	}
}
