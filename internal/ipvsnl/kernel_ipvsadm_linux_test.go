package ipvsnl_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// ipvsadm runs ipvsadm in the namespace and returns its output. It skips the test if ipvsadm is not
// installed.
func ipvsadm(t *testing.T, ns *netnstest.NS, args ...string) string {
	t.Helper()
	return nstest.Exec(t, ns, "", append([]string{"ipvsadm"}, args...)...)
}

// listed returns what ipvsadm -Ln prints about each service and, after a semicolon, about each of
// its destinations. It leaves out the head and superfluous spaces.
func listed(t *testing.T, ns *netnstest.NS) (services []string) {
	t.Helper()
	for i, line := range strings.Split(strings.TrimSpace(ipvsadm(t, ns, "-L", "-n")), "\n") {
		line = strings.Join(strings.Fields(line), " ")
		switch {
		case i < 3:
		case strings.HasPrefix(line, "-> "):
			services[len(services)-1] += "; " + line[3:]
		default:
			services = append(services, line)
		}
	}
	return services
}

func TestKernelShowsIpvsadmWhatWeWrote(t *testing.T) {
	c, ns := kernelClient(t)
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.NewService(Wanted(Web))
		b.NewDestination(Web, Dest("10.244.1.1:8080"))
		b.NewDestination(Web, Destination{DestinationKey: DestKey("10.244.1.2:80"),
			Forward: ForwardTunnel, Weight: 1000})
		b.NewService(SIP)
		b.NewService(OPS)
		b.NewService(Service{ServiceKey: DNS6, Scheduler: "mh", Flags: FlagHashPort | FlagFallback |
			FlagPersistent,
			Timeout: time.Hour, Netmask: PrefixNetmask(FamilyIPv6, 64)})
		b.NewDestination(DNS6, Dest("[2001:db8::2]:53"))
		b.NewService(Service{ServiceKey: Marks, Scheduler: "sh", Flags: FlagHashPort})
		b.NewDestination(Marks, Destination{DestinationKey: DestKey("10.244.1.3:0"),
			Forward: ForwardDirectRoute})
	}))
	require.ElementsMatch(t, []string{
		"TCP 10.96.0.1:80 rr; 10.244.1.1:8080 Masq 1 0 0; 10.244.1.2:80 Tunnel 1000 0 0",
		"TCP 10.96.0.2:5060 rr persistent 60 mask 255.255.255.0 pe sip",
		"UDP 10.96.0.3:53 rr ops",
		"UDP [2001:db8::1]:53 mh (mh-fallback,mh-port) persistent 3600 mask 64; " +
			"[2001:db8::2]:53 Masq 1 0 0",
		"FWM 7 sh (sh-port); 10.244.1.3:0 Route 0 0 0",
	}, listed(t, ns))
	require.Contains(t, ipvsadm(t, ns, "-L", "--timeout"), "900 120 300")
}

func TestKernelShowsUsWhatIpvsadmWrote(t *testing.T) {
	c, ns := kernelClient(t)
	for _, r := range Recordings(t) {
		args := strings.Fields(r.Command)[1:]
		if r.Command == "ipvsadm -Ln" {
			break
		}
		ipvsadm(t, ns, args...)
	}
	services := servicesOf(t, c)
	var got []Service
	for _, s := range services {
		got = append(got, s.Service)
	}
	require.ElementsMatch(t, []Service{
		{ServiceKey: Web, Scheduler: "wlc"}, SIP, OPS,
		meant["ipvsadm -A -u [2001:db8::1]:53 -s wlc -p 300 -M 64"].service,
		meant["ipvsadm -A -f 7 -s sh -b sh-port,sh-fallback"].service,
	}, got)
	list := destsOf(t, c, Web)
	require.Len(t, list, 3)
	require.Equal(t, meant["ipvsadm -e -t 10.96.0.1:80 -r 10.244.1.1:8080 -m -w 6"].destination,
		list[0].Destination)
}
