package main

import (
	_ "embed" // of the manifest
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"github.com/kernlb/kernlb/examples/userspace/proxy"
)

//go:embed web.yaml
var demoManifest string

// startDemo starts a web server for each endpoint of the manifest, and maps addresses to them.
func (o *options) startDemo() (end func(), err error) {
	var servers []*http.Server
	end = func() {
		for _, s := range servers {
			_ = s.Close() // it served the demonstration
		}
	}
	rules := proxy.Mapping{to("10.96.0.10:80", netip.AddrPortFrom(localhost, 8080))}
	for i := 1; i <= 2; i++ {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(localhost, 0)))
		if err != nil {
			end()
			return nil, fmt.Errorf("-demo: start web server %d: %w", i, err)
		}
		name := fmt.Sprintf("endpoint %d\n", i)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(name)) // who does not listen is not told
		})}
		servers = append(servers, s)
		go func() { _ = s.Serve(l) }() // until it is closed
		rules = append(rules, to(fmt.Sprintf("10.244.0.%d:8080", i),
			l.Addr().(*net.TCPAddr).AddrPort()))
	}
	o.proxy.Map = append(o.proxy.Map, rules...)
	return end, nil
}

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// to is the rule that maps one address and port to another.
func to(from string, at netip.AddrPort) proxy.Rule {
	a := netip.MustParseAddrPort(from)
	return proxy.Rule{From: netip.PrefixFrom(a.Addr(), a.Addr().BitLen()), FromPort: a.Port(),
		To: at.Addr(), ToPort: at.Port()}
}
