package conntrack_test

import (
	"fmt"
	"iter"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"

	. "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
)

// hurtFlows is the number of flows of UDP clients. Every second flow has a valid endpoint.
const hurtFlows = 600

var hurtService = netip.MustParseAddrPort("10.96.0.10:53")

func hurtEndpoint(valid bool) netip.AddrPort {
	if valid {
		return netip.MustParseAddrPort("10.244.1.1:53")
	}
	return netip.MustParseAddrPort("10.244.1.2:53")
}

// newFlows returns the flows, with or without the valid ones.
func newFlows(valid bool) iter.Seq2[Flow, error] {
	return func(yield func(Flow, error) bool) {
		for i := range hurtFlows {
			if i%2 == 0 && !valid {
				continue
			}
			f := Flow{Protocol: UDP, Timeout: time.Hour, Status: StatusSeenReply | StatusAssured}
			f.Original = Tuple{Dst: hurtService, Src: netip.AddrPortFrom(
				netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), uint16(1024+i))}
			f.Reply = Tuple{Src: hurtEndpoint(i%2 == 0), Dst: f.Original.Src}
			if !yield(f, nil) {
				return
			}
		}
	}
}

// Each call to the kernel fails once, in each way. The cleaning deletes only stale flows, and
// returns an error if stale flows are left. The next cleaning deletes them.
func TestEachCallOfACleaningGoesWrong(t *testing.T) {
	t.Parallel()
	m := matcherOf(t, Change{Frontends: []Frontend{{Key: KeyOf(hurtService, UDP),
		Endpoints: []netip.AddrPort{hurtEndpoint(true)}}}})
	for _, fault := range append(rawnltest.All(), rawnltest.Torn) {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			table, ns := NewTable(t)
			judge := OpenTable(t, ns)
			faults := rawnltest.NewFaults()
			require.NoError(t, table.Hurt(faults))
			OK(judge.Create(t.Context(), newFlows(true)))(t)
			total := 0
			for n := 1; ; n++ {
				OK(judge.Create(t.Context(), newFlows(false)))(t)
				faults.Arm(fault, n)
				r, err := table.Clean(t.Context(), m, CleanOptions{})
				hits := faults.Disarm()
				total += hits
				valid, stale := countFlows(t, judge)
				require.Equal(t, hurtFlows/2, valid, "call %d", n)
				if err == nil {
					require.Zero(t, stale, "call %d", n)
				} else {
					require.ErrorContains(t, err, "clean up stale flows: ", "call %d", n)
					require.True(t, explained(err, fault), "call %d: %v", n, err)
				}

				require.LessOrEqual(t, r.Deleted, hurtFlows/2, "call %d", n)
				_, err = table.Clean(t.Context(), m, CleanOptions{})
				require.NoError(t, err, "call %d", n)
				valid, stale = countFlows(t, judge)
				require.Equal(t, fmt.Sprint(hurtFlows/2, 0), fmt.Sprint(valid, stale), "call %d", n)
				if hits == 0 {
					break
				}
			}

			require.Positive(t, total)
		})
	}
}

// countFlows counts the flows with the valid endpoint and the stale flows.
func countFlows(t *testing.T, table *Table) (valid, stale int) {
	for f, err := range table.Flows(t.Context(), Filter{}) {
		require.NoError(t, err)
		if f.Reply.Src == hurtEndpoint(true) {
			valid++
		} else {
			stale++
		}
	}

	return valid, stale
}

// explained reports whether an error names the fault.
func explained(err error, fault rawnltest.Fault) bool {
	return fault.Explains(err, ErrInterrupted, rawnl.ErrAnswersLost, rawnl.ErrMalformed,
		rawnl.ErrDumpInterrupted)
}
