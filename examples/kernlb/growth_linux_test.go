package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/test/growth"
	"github.com/kernlb/kernlb/servicemodel"
)

// The time to print large services, and to read a directory, is linear.
//
//nolint:paralleltest // it measures
func TestCostsAreLinear(t *testing.T) {
	t.Run("the endpoints of explain", func(t *testing.T) {
		growth.Linear(t, 1<<13, func(n int) *explanation {
			s := servicemodel.State{}.WithNode(servicemodel.Node{Name: "n1"})
			s = withBenchServices(s, 0, 1, n)
			return &explanation{program: &program{stdout: io.Discard}, name: benchName(0), state: s,
				service: s.Service(benchName(0))}
		}, (*explanation).printEndpoints)
	})
	t.Run("the lines of show -diff", func(t *testing.T) {
		growth.Linear(t, 1<<14, func(n int) (l [2][]string) {
			for i := range n {
				l[0], l[1] = append(l[0], fmt.Sprint(i)), append(l[1], fmt.Sprint(i+n/2))
			}
			return l
		}, func(l [2][]string) { unified(l[0], l[1]) })
	})
	t.Run("events of files", func(t *testing.T) {
		growth.Linear(t, 1<<14, func(n int) (b []byte) {
			for i := range n {
				b = binary.NativeEndian.AppendUint32(b, 1)
				b = binary.NativeEndian.AppendUint32(b, unix.IN_CLOSE_WRITE)
				b = binary.NativeEndian.AppendUint32(b, 0)
				b = binary.NativeEndian.AppendUint32(b, 16)
				b = fmt.Appendf(b, "%010d.yaml\x00", i)
			}
			return b
		}, func(b []byte) { decodeEvents(b, changes{}) })
	})
}
