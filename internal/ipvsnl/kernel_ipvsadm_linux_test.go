package ipvsnl_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	. "github.com/kernlb/kernlb/internal/ipvsnl"
)

// ipvsadm runs ipvsadm in the namespace and returns its output. It skips the test where there is
// none.
func ipvsadm(t *testing.T, ns *netnstest.NS, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("ipvsadm")
	if err != nil {
		t.Skipf("needs ipvsadm: %v", err)
	}
	var out []byte
	err = ns.Do(func() (err error) {
		out, err = exec.CommandContext(t.Context(), path, args...).CombinedOutput()
		return err
	})
	require.NoError(t, err, "ipvsadm %s: %s", strings.Join(args, " "), out)
	return string(out)
}

// listing is what ipvsadm -Ln would print, without its head and without trailing spaces, in the
// order of keys.
func listing(t *testing.T, c *Client) string {
	t.Helper()
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	var text strings.Builder
	for _, s := range services {
		if s.FWMark != 0 {
			fmt.Fprintf(&text, "FWM  %d", s.FWMark)
			if s.Family == FamilyIPv6 {
				text.WriteString(" IPv6")
			}
		} else {
			text.WriteString(strings.Replace(s.ServiceKey.String(), " ", "  ", 1))
		}
		fmt.Fprintf(&text, " %s%s\n", s.Scheduler, listedFlags(s.Service))
		list, err := c.Destinations(t.Context(), s.ServiceKey)
		require.NoError(t, err)
		for _, d := range list {
			methods := []string{"Masq", "Local", "Tunnel", "Route"}
			line := fmt.Sprintf("  -> %-28s %-7s %-6d %-10d %-10d", d, methods[d.Forward], d.Weight,
				d.ActiveConns, d.InactiveConns)
			text.WriteString(strings.TrimRight(line, " ") + "\n")
		}
	}
	return text.String()
}

// listedFlags is what ipvsadm prints after the scheduler.
func listedFlags(s Service) (text string) {
	var flags []string
	for i, name := range []string{"fallback", "port", "flag-3"} {
		if s.Flags&(FlagSchedulerOne<<i) != 0 {
			if name != "flag-3" && (s.Scheduler == "sh" || s.Scheduler == "mh") {
				name = s.Scheduler + "-" + name
			}
			flags = append(flags, name)
		}
	}
	if len(flags) > 0 {
		text += " (" + strings.Join(flags, ",") + ")"
	}
	if s.Flags&FlagPersistent != 0 {
		text += fmt.Sprintf(" persistent %d", int(s.Timeout.Seconds()))
		if s.Netmask != (Netmask{}) {
			text += " mask " + s.Netmask.Text(s.Family)
		}
	}
	if s.PersistenceEngine != "" {
		text += " pe " + s.PersistenceEngine
	}
	if s.Flags&FlagOnePacket != 0 {
		text += " ops"
	}
	return text
}

// listed takes head and trailing spaces off what ipvsadm -Ln printed, and sorts it as listing does:
// it sorts services by protocol first.
func listed(t *testing.T, text string) (services []string) {
	t.Helper()
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		line = strings.TrimRight(line, " ")
		switch {
		case i < 3:
		case strings.HasPrefix(line, "  -> "):
			services[len(services)-1] += line + "\n"
		default:
			services = append(services, line+"\n")
		}
	}
	return services
}

// blocks splits a listing into services.
func blocks(text string) (services []string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  -> ") {
			services[len(services)-1] += line
		} else {
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
			Timeout: time.Hour, Netmask: Mask(FamilyIPv6, 64)})
		b.NewDestination(DNS6, Dest("[2001:db8::2]:53"))
		b.NewService(Service{ServiceKey: Marks, Scheduler: "sh", Flags: FlagHashPort})
		b.NewDestination(Marks, Destination{DestinationKey: DestKey("10.244.1.3:0"),
			Forward: ForwardDirectRoute})
	}))
	got := ipvsadm(t, ns, "-L", "-n")
	require.ElementsMatch(t, listed(t, got), blocks(listing(t, c)), got)
	require.Contains(t, got, "TCP  10.96.0.2:5060 rr persistent 60 mask 255.255.255.0 pe sip")
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
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	var got []Service
	for _, s := range services {
		got = append(got, s.Service)
	}
	require.ElementsMatch(t, []Service{
		{ServiceKey: Web, Scheduler: "wlc"}, SIP, OPS,
		meant["ipvsadm -A -u [2001:db8::1]:53 -s wlc -p 300 -M 64"].service,
		meant["ipvsadm -A -f 7 -s sh -b sh-port,sh-fallback"].service,
	}, got)
	list, err := c.Destinations(t.Context(), Web)
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Equal(t, meant["ipvsadm -e -t 10.96.0.1:80 -r 10.244.1.1:8080 -m -w 6"].destination,
		list[0].Destination)
	got2 := ipvsadm(t, ns, "-L", "-n")
	require.ElementsMatch(t, listed(t, got2), blocks(listing(t, c)), got2)
}
