package ipvsnl_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
)

// meant has the meaning of the commands in testdata/ipvsadm.txt. ipvsadm names a service by all its
// settings, so only commands about services have the same bytes as ours. Commands about
// destinations have the same attributes for the destination.
var meant = map[string]struct {
	command     Command
	service     Service
	destination Destination
}{
	"ipvsadm -A -t 10.96.0.1:80 -s rr": {command: CommandNewService, service: Wanted(Web)},
	"ipvsadm -A -u [2001:db8::1]:53 -s wlc -p 300 -M 64": {command: CommandNewService,
		service: Service{
			ServiceKey: DNS6, Scheduler: "wlc", Flags: FlagPersistent, Timeout: 5 * time.Minute,
			Netmask: PrefixNetmask(FamilyIPv6, 64)}},
	"ipvsadm -A -f 7 -s sh -b sh-port,sh-fallback": {command: CommandNewService, service: Service{
		ServiceKey: Marks, Scheduler: "sh", Flags: FlagHashPort | FlagFallback}},
	"ipvsadm -A -t 10.96.0.2:5060 -s rr -p 60 -M 255.255.255.0 --pe sip": {
		command: CommandNewService, service: SIP},
	"ipvsadm -A -u 10.96.0.3:53 -s rr -o": {command: CommandNewService, service: OPS},
	"ipvsadm -E -t 10.96.0.1:80 -s wlc": {
		command: CommandSetService, service: Service{ServiceKey: Web, Scheduler: "wlc"}},
	"ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.1:8080 -m -w 5 -x 100 -y 50": {
		command: CommandNewDestination, service: Service{ServiceKey: Web},
		destination: Destination{DestinationKey: DestKey("10.244.1.1:8080"), Weight: 5,
			UpperThreshold: 100, LowerThreshold: 50}},
	"ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.2:80 -i --tun-type gue --tun-port 6080 --tun-csum": {
		command: CommandNewDestination, service: Service{ServiceKey: Web},
		destination: Destination{DestinationKey: DestKey("10.244.1.2:80"), Weight: 1,
			Forward: ForwardTunnel,
			Tunnel:  Tunnel{Type: 1, Port: 6080, Flags: 1}}}, // GUE with checksum
	"ipvsadm -a -t 10.96.0.1:80 -r [2001:db8::2]:80 -i": {
		command: CommandNewDestination, service: Service{ServiceKey: Web},
		destination: Destination{DestinationKey: DestKey("[2001:db8::2]:80"), Weight: 1,
			Forward: ForwardTunnel}},
	"ipvsadm -a -f 7 -r 10.244.1.3:0 -g -w 0": {
		command: CommandNewDestination, service: Service{ServiceKey: Marks},
		destination: Destination{DestinationKey: DestKey("10.244.1.3:0"),
			Forward: ForwardDirectRoute}},
	"ipvsadm -e -t 10.96.0.1:80 -r 10.244.1.1:8080 -m -w 6": {
		command: CommandSetDestination, service: Service{ServiceKey: Web},
		destination: Destination{DestinationKey: DestKey("10.244.1.1:8080"), Weight: 6}},
	// ipvsadm sends all attributes of a destination, even to delete it
	"ipvsadm -d -t 10.96.0.1:80 -r 10.244.1.1:8080": {
		command: CommandDelDestination, service: Service{ServiceKey: Web},
		destination: Destination{DestinationKey: DestKey("10.244.1.1:8080"), Weight: 1,
			Forward: ForwardDirectRoute}},
	"ipvsadm -D -t 10.96.0.1:80": {command: CommandDelService, service: Service{ServiceKey: Web}},
}

var (
	SIP = Service{ServiceKey: AddressService(TCP, AddrPort("10.96.0.2:5060")), Scheduler: "rr",
		Flags:   FlagPersistent,
		Timeout: time.Minute, Netmask: PrefixNetmask(FamilyIPv4, 24), PersistenceEngine: "sip"}
	OPS = Service{ServiceKey: AddressService(UDP, AddrPort("10.96.0.3:53")), Scheduler: "rr",
		Flags: FlagOnePacket}
)

func TestIpvsadmMeansWhatWeMean(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, r := range Recordings(t) {
		want, ok := meant[r.Command]
		if !ok {
			continue
		}
		seen++
		t.Run(r.Command, func(t *testing.T) {
			t.Parallel()
			body := r.Sent[len(r.Sent)-1]
			require.Equal(t, want.command, Command(body[0]))
			w, err := Parse(body[genHeader:])
			require.NoError(t, err)
			key, err := w.Service.Key()
			require.NoError(t, err)
			require.Equal(t, want.service.ServiceKey, key)
			if want.destination == (Destination{}) {
				require.False(t, w.Destination.Named())
				return
			}
			d, err := w.Destination.Observed(FamilyIPv4)
			require.NoError(t, err)
			require.Equal(t, want.destination, d.Destination)
		})
	}
	require.Equal(t, len(meant), seen, "commands of the recording")
}

func TestOurBytesAreIpvsadms(t *testing.T) {
	t.Parallel()
	compared := 0
	for _, r := range Recordings(t) {
		m := meant[r.Command]
		want := r.Sent[len(r.Sent)-1]
		var b Batch
		switch {
		case m.command == CommandNewService:
			b.NewService(m.service)
		case m.command == CommandSetService:
			b.SetService(m.service)
		default:
			continue
		}
		require.Equal(t, want, b.Wire().Bytes()[HeadersLen-genHeader:], r.Command)
		compared++
	}
	require.Equal(t, 6, compared)
}

func TestTheKernelsAnswersAreUnderstood(t *testing.T) {
	t.Parallel()
	services := map[ServiceKey]ObservedService{}
	destinations := map[DestinationKey]ObservedDestination{}
	for _, r := range Recordings(t) {
		for _, body := range r.Got {
			var err error
			switch Command(body[0]) {
			case 14: // IPVS_CMD_SET_INFO
			case CommandNewService:
				var s ObservedService
				s, err = ParseServiceReply(body[genHeader:])
				services[s.ServiceKey] = s
			case CommandNewDestination:
				var d ObservedDestination
				d, err = ParseDestinationReply(body[genHeader:], FamilyIPv4)
				destinations[d.DestinationKey] = d
			default:
				t.Fatalf("%s: an answer with %v", r.Command, Command(body[0]))
			}
			require.NoError(t, err, r.Command)
		}
	}
	require.Len(t, services, 5)
	for _, command := range []string{
		"ipvsadm -E -t 10.96.0.1:80 -s wlc", "ipvsadm -A -u [2001:db8::1]:53 -s wlc -p 300 -M 64",
		"ipvsadm -A -f 7 -s sh -b sh-port,sh-fallback",
		"ipvsadm -A -t 10.96.0.2:5060 -s rr -p 60 -M 255.255.255.0 --pe sip",
		"ipvsadm -A -u 10.96.0.3:53 -s rr -o",
	} {
		want := meant[command].service
		require.Equal(t, ObservedService{Service: want}, services[want.ServiceKey], command)
	}
	require.Len(t, destinations, 4)
	for _, command := range []string{
		"ipvsadm -e -t 10.96.0.1:80 -r 10.244.1.1:8080 -m -w 6",
		"ipvsadm -a -f 7 -r 10.244.1.3:0 -g -w 0",
		"ipvsadm -a -t 10.96.0.1:80 -r [2001:db8::2]:80 -i",
		"ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.2:80 -i --tun-type gue --tun-port 6080 --tun-csum",
	} {
		want := meant[command].destination
		require.Equal(t, ObservedDestination{Destination: want}, destinations[want.DestinationKey],
			command)
	}
}
