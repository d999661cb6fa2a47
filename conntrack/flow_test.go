package conntrack_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/rawnl"
	. "github.com/kernlb/kernlb/internal/test/cttest"

	. "github.com/kernlb/kernlb/conntrack"
)

func TestFlowKnowsWhatWasDoneToIt(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		flow                    Flow
		translated, masqueraded bool
	}{
		{NewFlow(UDP, Client, "10.96.0.10:53", "", ""), false, false},
		{NewFlow(UDP, Client, "10.96.0.10:53", "10.244.0.5:5353", ""), true, false},
		{NewFlow(UDP, Client, "10.96.0.10:53", "10.96.0.10:5353", ""), true, false},
		{NewFlow(UDP, Client, "10.96.0.10:53", "", "192.0.2.10:4000"), false, true},
		{NewFlow(UDP, Client, "10.96.0.10:53", "10.244.0.5:5353", "192.0.2.10:4000"), true, true},
	} {
		require.Equal(t, tc.translated, tc.flow.Translated(), tc.flow.String())
		require.Equal(t, tc.masqueraded, tc.flow.Masqueraded(), tc.flow.String())
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, "none", Status(0).String())
	require.Equal(t, "seen-reply|dst-nat|0x30000", (StatusSeenReply | StatusDstNAT | 0x30000).
		String())
	require.Equal(t, "hw-offload", Status(1<<15).String())
	require.Equal(t, "42", Protocol(42).String())
	require.Equal(t, "family 7", Family(7).String())
	require.Equal(t, "TIME_WAIT", TCPState(7).String())
	require.Equal(t, "77", TCPState(77).String())
	require.Equal(t, "HEARTBEAT_SENT", SCTPState(8).String())
	open := []string{"SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK"}
	for s := range TCPState(10) {
		require.Equal(t, slices.Contains(open, s.String()), s.Open(), s.String())
	}
}

func TestUsageFraction(t *testing.T) {
	t.Parallel()
	require.InDelta(t, 0.25, Usage{Count: 65536, Max: 262144}.Fraction(), 1e-9)
	require.Zero(t, Usage{Count: 65536}.Fraction())
}

func TestExplainKeepsTheCause(t *testing.T) {
	t.Parallel()
	for cause, want := range map[error]error{
		syscall.EPERM: kernelerr.ErrNoPermission, syscall.ENOMEM: ErrTableFull,
		rawnl.ErrDumpInterrupted: ErrInterrupted,
		rawnl.ErrClosed:          ErrClosed, rawnl.ErrNotSupported: errors.ErrUnsupported,
	} {
		err := Explain(Explain(fmt.Errorf("send: %w", cause)))
		require.ErrorIs(t, err, want)
		require.ErrorIs(t, err, cause)
	}

	require.NoError(t, Explain(nil))
}

func TestCheckFlow(t *testing.T) {
	t.Parallel()
	good := NewFlow(UDP, Client, "10.96.0.10:53", "10.244.0.5:5353", "")
	good.Timeout = 1e9
	require.NoError(t, CheckFlow(&good))
	for want, spoil := range map[string]func(*Flow){
		"Original.Src": func(f *Flow) { f.Original.Src = netip.AddrPort{} },
		"Original.Dst": func(f *Flow) { f.Original.Dst = netip.AddrPort{} },
		"Reply.Src":    func(f *Flow) { f.Reply.Src = AddrPort("[fd00::1]:1") },
		"Reply.Dst":    func(f *Flow) { f.Reply.Dst = AddrPort("[fd00::1]:1") },
		"Protocol":     func(f *Flow) { f.Protocol = 0 },
		"Timeout":      func(f *Flow) { f.Timeout = 1e6 },
	} {
		bad := good
		spoil(&bad)
		require.ErrorContains(t, CheckFlow(&bad), want)
	}
}
