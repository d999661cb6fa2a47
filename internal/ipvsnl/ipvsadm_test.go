package ipvsnl

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What the commands of testdata/ipvsadm.txt mean. ipvsadm names a service by all its settings, so
// only the commands about services have the same bytes here; those about destinations have the same
// attributes for the destination.
var meant = map[string]struct {
	command     Command
	service     Service
	destination Destination
}{
	"ipvsadm -A -t 10.96.0.1:80 -s rr": {command: CommandNewService, service: wanted(web)},
	"ipvsadm -A -u [2001:db8::1]:53 -s wlc -p 300 -M 64": {command: CommandNewService,
		service: Service{
			ServiceKey: dns6, Scheduler: "wlc", Flags: FlagPersistent, Timeout: 5 * time.Minute,
			Netmask: mask(FamilyIPv6, 64)}},
	"ipvsadm -A -f 7 -s sh -b sh-port,sh-fallback": {command: CommandNewService, service: Service{
		ServiceKey: marks, Scheduler: "sh", Flags: FlagHashPort | FlagFallback}},
	"ipvsadm -A -t 10.96.0.2:5060 -s rr -p 60 -M 255.255.255.0 --pe sip": {
		command: CommandNewService, service: sip},
	"ipvsadm -A -u 10.96.0.3:53 -s rr -o": {command: CommandNewService, service: ops},
	"ipvsadm -E -t 10.96.0.1:80 -s wlc": {
		command: CommandSetService, service: Service{ServiceKey: web, Scheduler: "wlc"}},
	"ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.1:8080 -m -w 5 -x 100 -y 50": {
		command: CommandNewDestination, service: Service{ServiceKey: web},
		destination: Destination{DestinationKey: destKey("10.244.1.1:8080"), Weight: 5,
			UpperThreshold: 100, LowerThreshold: 50}},
	"ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.2:80 -i --tun-type gue --tun-port 6080 --tun-csum": {
		command: CommandNewDestination, service: Service{ServiceKey: web},
		destination: Destination{DestinationKey: destKey("10.244.1.2:80"), Weight: 1,
			Forward: ForwardTunnel,
			Tunnel:  Tunnel{Type: TunnelGUE, Port: 6080, Flags: TunnelChecksum}}},
	"ipvsadm -a -t 10.96.0.1:80 -r [2001:db8::2]:80 -i": {
		command: CommandNewDestination, service: Service{ServiceKey: web},
		destination: Destination{DestinationKey: destKey("[2001:db8::2]:80"), Weight: 1,
			Forward: ForwardTunnel}},
	"ipvsadm -a -f 7 -r 10.244.1.3:0 -g -w 0": {
		command: CommandNewDestination, service: Service{ServiceKey: marks},
		destination: Destination{DestinationKey: destKey("10.244.1.3:0"),
			Forward: ForwardDirectRoute}},
	"ipvsadm -e -t 10.96.0.1:80 -r 10.244.1.1:8080 -m -w 6": {
		command: CommandSetDestination, service: Service{ServiceKey: web},
		destination: Destination{DestinationKey: destKey("10.244.1.1:8080"), Weight: 6}},
	// it says all of a destination also to delete it
	"ipvsadm -d -t 10.96.0.1:80 -r 10.244.1.1:8080": {
		command: CommandDelDestination, service: Service{ServiceKey: web},
		destination: Destination{DestinationKey: destKey("10.244.1.1:8080"), Weight: 1,
			Forward: ForwardDirectRoute}},
	"ipvsadm -D -t 10.96.0.1:80": {command: CommandDelService, service: Service{ServiceKey: web}},
}

var (
	sip = Service{ServiceKey: AddressService(TCP, addrPort("10.96.0.2:5060")), Scheduler: "rr",
		Flags:   FlagPersistent,
		Timeout: time.Minute, Netmask: mask(FamilyIPv4, 24), PersistenceEngine: "sip"}
	ops = Service{ServiceKey: AddressService(UDP, addrPort("10.96.0.3:53")), Scheduler: "rr",
		Flags: FlagOnePacket}
)

func TestIpvsadmMeansWhatWeMean(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, r := range recordings(t) {
		want, ok := meant[r.command]
		if !ok {
			continue
		}
		seen++
		t.Run(r.command, func(t *testing.T) {
			t.Parallel()
			body := r.sent[len(r.sent)-1]
			require.Equal(t, want.command, Command(body[0]))
			a := attrs{what: "request", rest: body[genHeaderLen:]}
			for a.next() {
				switch a.typ {
				case cmdAttrService:
					w, err := decodeService(a.data)
					require.NoError(t, err)
					key, err := w.key()
					require.NoError(t, err)
					require.Equal(t, want.service.ServiceKey, key)
				case cmdAttrDestination:
					w, err := decodeDestination(a.data)
					require.NoError(t, err)
					d, err := w.observed(FamilyIPv4)
					require.NoError(t, err)
					require.Equal(t, want.destination, d.Destination)
				}
			}
			require.NoError(t, a.err)
		})
	}
	require.Equal(t, len(meant), seen, "commands of the recording")
}

func TestOurBytesAreIpvsadms(t *testing.T) {
	t.Parallel()
	compared := 0
	for _, r := range recordings(t) {
		m := meant[r.command]
		want := r.sent[len(r.sent)-1]
		var b Batch
		switch {
		case m.command == CommandNewService:
			b.NewService(m.service)
		case m.command == CommandSetService:
			b.SetService(m.service)
		case m.destination.Tunnel.Type == TunnelGUE:
			// it sends the attributes of tunnels always, we do if they matter
			b.NewDestination(m.service.ServiceKey, m.destination)
			want = attribute(want, cmdAttrDestination)
		default:
			continue
		}
		require.NoError(t, b.Err())
		got := b.buf[headerLen:]
		if m.command == CommandNewDestination {
			got = attribute(got, cmdAttrDestination)
		}
		require.Equal(t, want, got, r.command)
		compared++
	}
	require.Equal(t, 7, compared)
}

// attribute returns the first attribute of the type in a message that begins with its genlmsghdr.
func attribute(body []byte, typ uint16) []byte {
	a := attrs{rest: body[genHeaderLen:]}
	for a.next() {
		if a.typ == typ {
			return a.data
		}
	}
	return nil
}

func TestTheKernelsAnswersAreUnderstood(t *testing.T) {
	t.Parallel()
	services := map[ServiceKey]ObservedService{}
	destinations := map[DestinationKey]ObservedDestination{}
	var info Info
	for _, r := range recordings(t) {
		for _, body := range r.got {
			var err error
			switch Command(body[0]) {
			case CommandSetInfo:
				info, err = decodeInfo(body[genHeaderLen:])
			case CommandNewService:
				var s ObservedService
				s, err = decodeServiceReply(body[genHeaderLen:])
				services[s.ServiceKey] = s
			case CommandNewDestination:
				var d ObservedDestination
				d, err = decodeDestinationReply(body[genHeaderLen:], FamilyIPv4)
				destinations[d.DestinationKey] = d
			default:
				t.Fatalf("%s: an answer with %v", r.command, Command(body[0]))
			}
			require.NoError(t, err, r.command)
		}
	}
	require.Equal(t, Info{Version: 0x010201, ConnTableSize: 4096}, info)

	require.Len(t, services, 5)
	for _, command := range []string{
		"ipvsadm -E -t 10.96.0.1:80 -s wlc", "ipvsadm -A -u [2001:db8::1]:53 -s wlc -p 300 -M 64",
		"ipvsadm -A -f 7 -s sh -b sh-port,sh-fallback",
		"ipvsadm -A -t 10.96.0.2:5060 -s rr -p 60 -M 255.255.255.0 --pe sip",
		"ipvsadm -A -u 10.96.0.3:53 -s rr -o",
	} {
		want := meant[command].service
		require.Equal(t, ObservedService{Service: want, Hashed: true}, services[want.ServiceKey],
			command)
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

func TestIpvsadmCanTalkToTheFake(t *testing.T) {
	t.Parallel()
	f := NewFake()
	for i, r := range recordings(t) {
		for _, body := range r.sent {
			if Command(body[0]) == CommandGetService || Command(body[0]) == CommandGetDestination {
				continue
			}
			request := append(make([]byte, headerLen), body...)
			native.PutUint16(request[6:], ackFlags)
			stamp(request, fakeFamily, uint32(i))
			answer, _ := f.answer(endMessage(request, 0))
			m, _, err := nextMessage(answer[len(answer)-1])
			require.NoError(t, err)
			v, err := m.verdict()
			require.NoError(t, err)
			require.Zero(t, v.errno, r.command)
		}
		if r.command == "ipvsadm -Ln" {
			require.Len(t, f.Keys(), 5)
			require.Len(t, f.services[web].destinations, 3)
		}
	}
	require.Equal(t, []string{
		"new service TCP 10.96.0.1:80: rr flags none timeout 0s netmask 255.255.255.255",
		"new service UDP [2001:db8::1]:53: wlc flags persistent timeout 5m0s netmask 64",
		"new service FWM 7 IPv4: sh flags sched-1|sched-2 timeout 0s netmask 255.255.255.255",
		"new service TCP 10.96.0.2:5060: rr flags persistent timeout 1m0s netmask 255.255.255.0 " +
			"engine sip",
		"new service UDP 10.96.0.3:53: rr flags one-packet timeout 0s netmask 255.255.255.255",
		"set service TCP 10.96.0.1:80: wlc flags none timeout 0s netmask 255.255.255.255",
		"new destination 10.244.1.1:8080 of TCP 10.96.0.1:80: weight 5 masquerade thresholds 50 " +
			"100",
		"new destination 10.244.1.2:80 of TCP 10.96.0.1:80: weight 1 tunnel gue port 6080 csum",
		"new destination [2001:db8::2]:80 of TCP 10.96.0.1:80: weight 1 tunnel ipip port 0 none",
		"new destination 10.244.1.3:0 of FWM 7 IPv4: weight 0 direct route",
		"set destination 10.244.1.1:8080 of TCP 10.96.0.1:80: weight 6 masquerade",
		"delete destination 10.244.1.1:8080 of TCP 10.96.0.1:80",
		"delete service TCP 10.96.0.1:80",
		"set config: tcp 15m0s, tcp fin 2m0s, udp 5m0s",
		"flush",
	}, f.Log())
	require.Empty(t, f.Keys())
}
