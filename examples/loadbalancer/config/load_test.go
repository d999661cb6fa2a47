package config_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/examples/loadbalancer/config"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

const whole = `
concurrency: 8
services:
  - name: web
    addresses: [203.0.113.10, "2001:db8::10"]
    port: 80
    device: lo
    scheduler: wrr
    forwarding: nat
    masquerade: never
    affinity: 5m
    sources: [198.51.100.0/24]
    denied: [198.51.100.8/32]
    connections: 30s
    checks: &both
      - {type: http, path: /healthz, status: 200-299 404, interval: 1s, source: 10.0.0.1}
      - {type: tcp, port: 9, fall: 1}
    sorry: ["10.0.0.9:80"]
    backends:
      - address: 10.0.0.2:8080
      - {address: 10.0.0.3:8080, weight: 0, checks: [{type: grpc, service: web}]}
      - {address: "[2001:db8::2]:8080", weight: 3, checks: [{type: http}, {type: tcp, port: 9}]}
  - name: dns
    addresses: [203.0.113.10]
    port: 53
    protocol: udp
    checks: *both
    backends: [{address: 10.0.0.2:53}]
`

func TestAllFieldsAreRead(t *testing.T) {
	t.Parallel()
	f, err := config.Parse("lb.yaml", []byte(whole))
	require.NoError(t, err)
	require.Equal(t, 8, f.Concurrency)
	require.Len(t, f.Services, 2)
	web, dns := &f.Services[0], &f.Services[1]
	m, err := web.Model()
	require.NoError(t, err)
	require.Equal(t, "loadbalancer/web", m.Name.String())
	require.Equal(t, 5*time.Minute, m.SessionAffinity.Timeout)
	require.Equal(t, servicemodel.WeightedRR, m.Scheduler)
	require.Equal(t, "drain 30s", m.Connections.String())
	require.Equal(t, servicemodel.MasqueradeNever, m.Masquerade.LoadBalancerIPs)
	require.Equal(t, dns.Checks, web.Checks)
	require.Equal(t, []servicemodel.ClientRule{{Deny: web.Denied}}, m.Clients)

	http := web.Targets(&web.Backends[0])[0]
	require.Equal(t, "http 10.0.0.2:8080/healthz", http.String())
	c := http.Check()
	require.Equal(t, netip.MustParseAddr("10.0.0.1"), c.Source)
	require.Equal(t, []any{time.Second, time.Second, time.Second, 2, 3},
		[]any{c.Interval, c.Timeout, c.Retry, c.Rise, c.Fall})
	tcp := web.Targets(&web.Backends[2])[1]
	require.Equal(t, "tcp [2001:db8::2]:9", tcp.String())
	require.Equal(t, checks.GRPC, web.Targets(&web.Backends[1])[0].Check().Type)
}

// Packets keep their ports at servers with the first port of a range.
func TestARangeOfPorts(t *testing.T) {
	t.Parallel()
	f, err := config.Parse("lb.yaml", []byte("services: [{name: rtp, addresses: [203.0.113.10], "+
		"port: 10000, endPort: 20000, protocol: udp, sorry: ['10.0.0.9:9'], "+
		"checks: [{type: tcp, port: 5060}], backends: [{address: '10.0.0.2:10000'}]}]"))
	require.NoError(t, err)
	table, err := servicemodel.Resolve(nil, must.OK(f.State(
		func(*config.Service, *config.Backend) bool { return true }))(t))
	require.NoError(t, err)
	decide := func(port uint16) string {
		return table.Decide(servicemodel.Packet{Protocol: servicemodel.UDP,
			Src: netip.MustParseAddrPort("192.0.2.7:4000"),
			Dst: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.10"), port)}, nil).String()
	}

	require.Contains(t, decide(10000), "10.0.0.2:10000")
	require.Contains(t, decide(15000), "10.0.0.2:15000")
	require.NotContains(t, decide(20001), "10.0.0.2")
	table, err = servicemodel.Resolve(nil, must.OK(f.State(
		func(*config.Service, *config.Backend) bool { return false }))(t))
	require.NoError(t, err)
	require.Contains(t, decide(15000), "10.0.0.9:9")
}

// A range can be mapped to a range of the backends, which all have its first port.
func TestAMappedRangeOfPorts(t *testing.T) {
	t.Parallel()
	parse := func(backend string) (*config.File, error) {
		return config.Parse("lb.yaml", []byte("services: [{name: rtp, addresses: [203.0.113.10], "+
			"port: 8000, endPort: 8099, targetPort: 9000, backends: [{address: '"+backend+"'}]}]"))
	}
	f, err := parse("10.0.0.2:9000")
	require.NoError(t, err)
	table, err := servicemodel.Resolve(nil, must.OK(f.State(
		func(*config.Service, *config.Backend) bool { return true }))(t))
	require.NoError(t, err)
	require.Contains(t, table.Decide(servicemodel.Packet{Protocol: servicemodel.TCP,
		Src: netip.MustParseAddrPort("192.0.2.7:4000"),
		Dst: netip.MustParseAddrPort("203.0.113.10:8042")}, nil).String(), "10.0.0.2:9042")
	_, err = parse("10.0.0.2:8000")
	require.ErrorContains(t, err, "services[0].backends[0].address: 8000: must be the targetPort")
}

// Drained backends get no new connections, and sorry servers serve a family without backends.
func TestSorryServersStandInForTheirFamily(t *testing.T) {
	t.Parallel()
	f, err := config.Parse("lb.yaml", []byte(whole))
	require.NoError(t, err)
	web := &f.Services[0]
	eps := func(up ...bool) string {
		var out []string
		isUp := func(b *config.Backend) bool {
			return up[slices.IndexFunc(web.Backends, func(other config.Backend) bool {
				return b.Address == other.Address
			})]
		}
		for _, e := range web.Endpoints(isUp) {
			out = append(out, fmt.Sprint(e.Addr, " ", e.Weight, " ", e.Condition))
		}
		return strings.Join(out, ", ")
	}

	require.Equal(t, "10.0.0.2 0 ready, 10.0.0.3 0 quiesced, 2001:db8::2 3 not-ready",
		eps(true, true, false))
	require.Equal(t, "10.0.0.2 0 not-ready, 10.0.0.3 0 quiesced, 2001:db8::2 3 ready, "+
		"10.0.0.9 0 ready", eps(false, true, true))
}

// Each error names the file, the line and the field, and all are found at once.
func TestWhatIsWrongIsNamed(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		var want []string
		for line := range strings.Lines(string(text)) {
			if w, ok := strings.CutPrefix(line, "# "); ok {
				want = append(want, strings.TrimSuffix(w, "\n"))
			}
		}

		_, err = config.Parse("lb.yaml", text)
		assert.EqualError(t, err, strings.Join(want, "\n"), name)
	}
}

func TestErrorsAboutAServiceHaveItsLine(t *testing.T) {
	t.Parallel()
	f, err := config.Parse("lb.yaml", []byte(whole))
	require.NoError(t, err)
	for field, want := range map[string]string{
		"scheduler": "lb.yaml:8: services[0].scheduler: EOF", "": "lb.yaml:4: services[0]: EOF",
	} {
		require.EqualError(t, f.InService("web", field, fmt.Errorf("EOF")), want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(whole)
	f.Add("services: [{name: a, addresses: [::1], port: 1, backends: [{address: '[::2]:1'}]}]")
	f.Add("a: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := config.Parse("f", []byte(text))
		if err != nil {
			return
		}
		for i := range file.Services { // what was accepted can be used
			_, err := file.Services[i].Model()
			require.NoError(t, err)
		}
	})
}
