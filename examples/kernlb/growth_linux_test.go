package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
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
			name := servicemodel.Name{Namespace: "default", Name: "web"}
			s := servicemodel.State{}.WithNode(servicemodel.Node{Name: "n1"})
			s = s.WithService(&servicemodel.Service{Name: name,
				ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, 1})},
				Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}})
			eps := make([]servicemodel.Endpoint, n)
			for i := range eps {
				eps[i] = servicemodel.Endpoint{
					Addr:  netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}),
					Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 80}}}
			}

			s = s.WithEndpoints(name, eps)
			return &explanation{program: &program{stdout: io.Discard}, name: name, state: s,
				service: s.Service(name)}
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
