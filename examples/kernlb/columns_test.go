package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// calls counts writes.
type calls int

func (c *calls) Write(b []byte) (int, error) { *c++; return len(b), nil }

// A table of 10,000 lines takes a system call for each 64 KB, not for each cell.
func TestColumnsAreWrittenInLargeParts(t *testing.T) {
	t.Parallel()
	var n calls
	w, size := newColumns(&n), 0
	for i := range 10000 {
		l, _ := fmt.Fprintf(w, "10.96.%d.%d:80/tcp\tdefault/web\t%d\n", i>>8, i&255, i)
		size += l
	}
	require.NoError(t, w.Flush())
	require.LessOrEqual(t, int(n), size/(32<<10)+2)
}
