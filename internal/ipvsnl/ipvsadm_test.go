package ipvsnl_test

import (
	_ "embed"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
)

// ipvsadmText has commands of ipvsadm, and for each the messages that were sent and received, from
// the genlmsghdr on. It is embedded, so that the test binary can run in a virtual machine.
//
//go:embed testdata/ipvsadm.txt
var ipvsadmText string

// Services of the recording.
var (
	SIP = Service{ServiceKey: AddressService(TCP, netip.MustParseAddrPort("10.96.0.2:5060")),
		Scheduler: "rr", Flags: FlagPersistent, Timeout: time.Minute,
		Netmask: PrefixNetmask(FamilyIPv4, 24), PersistenceEngine: "sip"}
	OPS = Service{ServiceKey: AddressService(UDP, netip.MustParseAddrPort("10.96.0.3:53")),
		Scheduler: "rr", Flags: FlagOnePacket}
	sticky6 = Service{ServiceKey: DNS6, Scheduler: "wlc", Flags: FlagPersistent,
		Timeout: 5 * time.Minute, Netmask: PrefixNetmask(FamilyIPv6, 64)}
	hashed = Service{ServiceKey: Marks, Scheduler: "sh", Flags: FlagHashPort | FlagFallback}
	wlc    = Service{ServiceKey: Web, Scheduler: "wlc"}
)

// littleEndian skips a test on a big-endian machine, because its expected bytes are little-endian.
func littleEndian(tb testing.TB) {
	tb.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		tb.Skip("the expected bytes are those of a little-endian machine")
	}
}

// Our commands about services have the same bytes as ipvsadm's commands, which name a service by
// all its settings. The kernel's answers show the effects of the commands.
func TestTheRecordingIsUnderstood(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	ours := map[string]Op{
		"-A -t 10.96.0.1:80 -s rr":                                   NewService(Wanted(Web)),
		"-A -u [2001:db8::1]:53 -s wlc -p 300 -M 64":                 NewService(sticky6),
		"-A -f 7 -s sh -b sh-port,sh-fallback":                       NewService(hashed),
		"-A -t 10.96.0.2:5060 -s rr -p 60 -M 255.255.255.0 --pe sip": NewService(SIP),
		"-A -u 10.96.0.3:53 -s rr -o":                                NewService(OPS),
		"-E -t 10.96.0.1:80 -s wlc":                                  SetService(wlc),
	}
	var services []Service
	var destinations []Destination
	command, compared := "", 0
	for line := range strings.Lines(ipvsadmText) {
		kind, data, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "ipvsadm":
			command = data
		case ">":
			body := Unhex(t, data)
			if op, known := ours[command]; known && Command(body[0]) == op.Command {
				require.Equal(t, body[genHeader:], op.Wire(), command)
				compared++
			}
		case "<":
			body := Unhex(t, data)
			switch Command(body[0]) {
			case 14: // IPVS_CMD_SET_INFO
			case CommandNewService:
				s := ok(ParseServiceReply(body[genHeader:]))(t)
				services = append(services, s.Service)
				require.Zero(t, s.Stats)
			case CommandNewDestination:
				d := ok(ParseDestinationReply(body[genHeader:], FamilyIPv4))(t)
				destinations = append(destinations, d.Destination)
				require.Equal(t, ObservedDestination{Destination: d.Destination}, d)
			default:
				t.Fatalf("%s: an answer with %v", command, Command(body[0]))
			}
		}
	}

	require.Equal(t, len(ours), compared)
	require.ElementsMatch(t, []Service{wlc, sticky6, hashed, SIP, OPS}, services)
	require.ElementsMatch(t, []Destination{
		{DestinationKey: DestKey("10.244.1.1:8080"), Weight: 6},
		{DestinationKey: DestKey("10.244.1.2:80"), Weight: 1, Forward: ForwardTunnel,
			Tunnel: Tunnel{Type: 1, Port: 6080, Flags: 1}}, // GUE with checksum
		{DestinationKey: DestKey("[2001:db8::2]:80"), Weight: 1, Forward: ForwardTunnel},
		{DestinationKey: DestKey("10.244.1.3:0"), Forward: ForwardDirectRoute},
	}, destinations)
}
