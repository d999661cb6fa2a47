package conntrack

import (
	"bufio"
	"encoding/hex"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/must"
)

// recordedEvents returns the events of testdata/events.txt.
func recordedEvents(tb testing.TB) (all [][]byte) {
	file := must.OK(os.Open("testdata/events.txt"))(tb)
	defer file.Close()
	for s := bufio.NewScanner(file); s.Scan(); {
		if data, err := hex.DecodeString(s.Text()); err == nil && len(data) > 0 {
			all = append(all, data)
		}
	}

	return all
}

// parseEvents returns the events of a datagram.
func parseEvents(data []byte, wants func(*Flow) bool) (all []Event, err error) {
	err = rawnl.Messages(data, func(m rawnl.Message) error {
		var e Event
		err := parseEvent(m, &e, wants)
		if err == nil {
			all = append(all, e)
		}
		return err
	})
	return all, err
}

func TestParseRecordedEvents(t *testing.T) {
	t.Parallel()
	udp := "udp 0 src=10.0.0.1 dst=10.96.0.10 sport=4000 dport=53 [UNREPLIED] src=10.244.0.5 " +
		"dst=192.0.2.10 sport=5353 dport=4000 mark=0"
	over6 := "udp 0 src=fd00::1 dst=fd00:96::10 sport=4000 dport=53 [UNREPLIED] " +
		"src=fd00:96::10 dst=fd00::1 sport=53 dport=4000 mark=0 zone=9"
	sctp := "sctp 0 NONE src=10.0.0.1 dst=10.96.0.10 sport=4000 dport=53 [UNREPLIED] " +
		"src=10.244.0.5 dst=10.0.0.1 sport=5353 dport=4000 mark=0 zone-orig=9"
	for i, want := range []string{"new " + udp, "new " + over6, "new " + sctp,
		"destroyed " + sctp, "destroyed " + udp, "destroyed " + over6} {
		events := must.OK(parseEvents(recordedEvents(t)[i], wantAll))(t)
		require.Len(t, events, 1)
		require.NotZero(t, events[0].Flow.ID)
		events[0].Flow.Timeout = 0
		require.Equal(t, want, string(events[0].Type)+" "+events[0].Flow.String())
	}

	data := recordedEvents(t)[0]
	_, err := parseEvents(data[:50], wantAll)
	require.ErrorIs(t, err, rawnl.ErrMalformed)
	_, err = parseEvents(data, func(f *Flow) bool { return f.Protocol == TCP })
	require.Equal(t, errUnwanted, err)
}

func TestParseEvent(t *testing.T) {
	t.Parallel()
	event := func(typ uint8, flags uint16) (e Event, err error) {
		m := rawnl.Message{Subsys: rawnl.SubsysConntrack, Type: typ, Flags: flags,
			Attrs: recordings(t)[0].attrs}
		return e, parseEvent(m, &e, wantAll)
	}

	for _, tc := range []struct {
		typ   uint8
		flags uint16
		want  EventType
	}{
		{0, rawnl.FlagCreate | rawnl.FlagExcl, FlowNew}, {0, 0, FlowUpdated}, {2, 0, FlowDestroyed},
	} {
		e := must.OK(event(tc.typ, tc.flags))(t)
		require.Equal(t, tc.want, e.Type)
		require.Equal(t, ap("10.96.0.10:80"), e.Flow.Original.Dst)
	}

	_, err := event(1, 0)
	require.ErrorIs(t, err, rawnl.ErrMalformed)
	var e Event
	require.ErrorIs(t, parseEvent(rawnl.Message{Subsys: rawnl.SubsysNFTables}, &e, wantAll),
		rawnl.ErrMalformed)
}

func FuzzParseEvents(f *testing.F) {
	for _, data := range recordedEvents(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		events, _ := parseEvents(data, wantAll)
		for _, e := range events {
			require.NotEqual(t, familyAny, e.Flow.family())
		}
	})
}
