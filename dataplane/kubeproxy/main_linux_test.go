package kubeproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// recorded returns a file of testdata.
func recorded(t *testing.T, name string) string {
	t.Helper()
	text := ok(os.ReadFile(filepath.Join("testdata", name)))(t)
	return string(text)
}

// restore loads rules for IPv4, and the same rules for IPv6.
func restore(t *testing.T, ns *netnstest.NS, rules string) {
	t.Helper()
	nstest.Exec(t, ns, rules, "iptables-nft-restore", "--noflush")
	nstest.Exec(t, ns, rules6(rules), "ip6tables-nft-restore", "--noflush")
}

// setOf matches the names of IP sets, and addr4 addresses with a length or a port.
var (
	setOf = regexp.MustCompile(`--match-set KUBE-`)
	addr4 = regexp.MustCompile(`\b(\d+)\.(\d+)\.(\d+)\.(\d+)(?:/(\d+)|:(\d+))?`)
)

// rules6 converts rules for IPv4 to IPv6.
func rules6(rules string) string {
	rules = setOf.ReplaceAllString(rules, "--match-set KUBE-6-")
	return addr4.ReplaceAllStringFunc(rules, func(s string) string {
		m := addr4.FindStringSubmatch(s)
		addr := "2001:db8:" + strings.Join(m[1:5], ":") + "::"
		switch {
		case m[5] != "":
			return addr + "/64"
		case m[6] != "":
			return "[" + addr + "]:" + m[6]
		}

		return addr
	})
}

// tables6 converts kube-proxy's tables for IPv4 to IPv6. Like kube-proxy, it writes dots for the
// colons of addresses in names.
func tables6(text string) string {
	text = names4.ReplaceAllStringFunc(rules6(text), func(name string) string {
		return "__" + strings.ReplaceAll(rules6(name[2:]), ":", ".")
	})
	return strings.NewReplacer(" ip kube-proxy", " ip6 kube-proxy", "ipv4_addr", "ipv6_addr",
		"ip daddr", "ip6 daddr", "ip saddr", "ip6 saddr", "ip addr", "ip6 addr").
		Replace(text)
}

// names4 matches the end of a name with an endpoint, up to the port.
var names4 = regexp.MustCompile(`__\d+\.\d+\.\d+\.\d+`)

// saved returns all rules as nft and iptables print them.
func saved(t *testing.T, ns *netnstest.NS) string {
	t.Helper()
	all := nstest.Exec(t, ns, "", "nft", "list", "ruleset")
	for _, tool := range []string{"iptables-nft-save", "ip6tables-nft-save"} {
		for line := range strings.Lines(nstest.Exec(t, ns, "", tool)) {
			if !strings.HasPrefix(line, "#") {
				all += line
			}
		}
	}

	return all
}

// others loads objects that are not kube-proxy's, and returns all rules afterwards.
func others(t *testing.T, ns *netnstest.NS) string {
	t.Helper()
	restore(t, ns, recorded(t, "others.rules"))
	nstest.NFT(t, ns, recorded(t, "others.nft"))
	return saved(t, ns)
}

// makeSets creates the IP sets of kube-proxy. It skips the test if the kernel has no IP sets.
func makeSets(t *testing.T, ns *netnstest.NS) {
	t.Helper()
	h := ok(netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_NETFILTER))(t)
	defer h.Close()
	make := func(name, kind string, family uint8) {
		o := netlink.IpsetCreateOptions{Family: family}
		if kind == "bitmap:port" {
			o.PortTo = 65535
		}
		err := h.IpsetCreate(name, kind, o)
		if err == unix.EINVAL || err == unix.EPROTONOSUPPORT {
			t.Skip("the kernel has no ip_set")
		}
		require.NoError(t, err, name)
	}

	for _, name := range setNames() {
		family, base := uint8(unix.AF_INET), name
		if strings.HasPrefix(name, "KUBE-6-") {
			family, base = unix.AF_INET6, strings.Replace(name, "KUBE-6-", "KUBE-", 1)
		}
		make(name, kindOfSet(base), family)
	}

	make("others", "hash:ip,port", unix.AF_INET)
}

// kindOfSet is the type of an IP set (ipsetInfo in pkg/proxy/ipvs/proxier.go).
func kindOfSet(name string) string {
	switch name {
	case "KUBE-LOOP-BACK", "KUBE-LOAD-BALANCER-SOURCE-IP":
		return "hash:ip,port,ip"
	case "KUBE-LOAD-BALANCER-SOURCE-CIDR":
		return "hash:ip,port,net"
	case "KUBE-NODE-PORT-TCP", "KUBE-NODE-PORT-UDP", "KUBE-NODE-PORT-LOCAL-TCP",
		"KUBE-NODE-PORT-LOCAL-UDP", "KUBE-HEALTH-CHECK-NODE-PORT":
		return "bitmap:port"
	case "KUBE-IPVS-IPS":
		return "hash:ip"
	}

	return "hash:ip,port"
}

// makeCounters creates the counters of kube-proxy. It reports whether the kernel supports counters.
func makeCounters(t *testing.T, ns *netnstest.NS) bool {
	t.Helper()
	c := ok(rawnl.Dial(&rawnl.Config{NetNS: ns.NetNS()}))(t)
	defer c.Close()
	for _, name := range counters {
		if _, err := c.SendAll(t.Context(), counterRequest(0, "add", name), nil); err != nil {
			require.ErrorIs(t, err, unix.EINVAL)
			return false
		}
	}

	return true
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }

func TestRunning(t *testing.T) {
	t.Parallel()
	const root, nobody = 0, 65534
	for _, c := range []struct {
		name, addr, path, says string
		code, user             int
		want                   string
	}{
		{"iptables", "127.0.0.1", "/proxyMode", "iptables", http.StatusOK, root, "iptables"},
		{"IPv6 alone", "[::1]", "/proxyMode", "nftables\n", http.StatusOK, root, "nftables"},
		{"another program's metrics", "127.0.0.1", "/metrics", "iptables", http.StatusOK, root, ""},
		{"says something else", "127.0.0.1", "/proxyMode", "a mode that nobody has", http.StatusOK,
			root, ""},
		{"an error", "127.0.0.1", "/proxyMode", "ipvs", http.StatusInternalServerError, root, ""},
		{"a program in its place", "127.0.0.1", "/proxyMode", "ipvs", http.StatusOK, root, ""},
		{"any user can listen there", "127.0.0.1", "/proxyMode", "ipvs", http.StatusOK, nobody, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			cfg := &Config{NetNS: ns.NetNS()}
			mode := ok(Running(t.Context(), cfg))(t)
			require.Empty(t, mode, "nobody listens")

			mux := http.NewServeMux()
			mux.HandleFunc(c.path, func(w http.ResponseWriter, _ *http.Request) {
				if c.name == "a program in its place" {
					w.Header().Set("Server", Replacement)
				}
				w.WriteHeader(c.code)
				io.WriteString(w, c.says) //nolint:errcheck // the test would fail
			})

			var l net.Listener
			require.NoError(t, ns.Do(func() (err error) {
				if _, err := unix.SetfsuidRetUid(c.user); err != nil {
					return err
				}
				l, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", c.addr+":10249")
				_, again := unix.SetfsuidRetUid(root)
				return errors.Join(err, again)
			}))

			server := &http.Server{Handler: mux}
			go server.Serve(l) //nolint:errcheck // ends with Close
			t.Cleanup(func() { server.Close() })
			mode = ok(Running(t.Context(), cfg))(t)
			require.Equal(t, c.want, mode)
		})
	}

	_, err := Running(t.Context(), &Config{NetNS: "/run/netns/nosuch"})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A program that begins an answer but does not finish it cannot hold up Running.
func TestRunningWaitsOnlySoLong(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	var l net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:10249")
		return err
	}))

	server := &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})}
	go server.Serve(l) //nolint:errcheck // ends with Close
	t.Cleanup(func() { server.Close() })
	ctx, stop := context.WithTimeout(t.Context(), 10*answerLimit)
	defer stop()
	mode, err := Running(ctx, &Config{NetNS: ns.NetNS()})
	require.NoError(t, err)
	require.Empty(t, mode)
}
