package page

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// search finds services that match each word.
type search []word

// word matches a service in any of three ways: the name contains the text; a frontend has the
// address, the port, or both; or an endpoint has the address, or the address and port.
type word struct {
	text string
	addr netip.Addr
	port uint16
}

// parseSearch reads words such as "web", "kube-system/", "10.96.0.10", "80", "10.244.1.7:8080" and
// "10.96.0.10:80/tcp". Any text is a search.
func parseSearch(q string) (s search) {
	for text := range strings.FieldsSeq(strings.ToLower(q)) {
		w := word{text: text}
		var key servicemodel.FrontendKey
		if at, err := netip.ParseAddrPort(text); err == nil {
			w.addr, w.port = at.Addr().Unmap(), at.Port()
		} else if key.UnmarshalText([]byte(text)) == nil {
			w.addr, w.port = key.Addr, key.Port
		} else if a, err := netip.ParseAddr(text); err == nil {
			w.addr = a.Unmap()
		} else if n, err := strconv.ParseUint(text, 10, 16); err == nil {
			w.port = uint16(n)
		}

		s = append(s, w)
	}

	return s
}

// matches reports whether a service matches all words.
func (s search) matches(e *entry) bool {
	return !slices.ContainsFunc(s, func(w word) bool { return !w.matches(e) })
}

func (w *word) matches(e *entry) bool {
	if strings.Contains(e.text, w.text) {
		return true
	}
	if !w.addr.IsValid() && w.port == 0 {
		return false
	}
	for _, f := range e.frontends {
		if (!w.addr.IsValid() || f.Key.Addr == w.addr) && (w.port == 0 || f.Key.Port == w.port) {
			return true
		}
	}

	return w.addr.IsValid() && w.isEndpoint(e)
}

// isEndpoint reports whether the service has an endpoint at the address, used or not.
func (w *word) isEndpoint(e *entry) bool {
	port := func(p servicemodel.EndpointPort) bool { return p.Port == w.port }
	for ep := range e.endpoints {
		if ep.Addr == w.addr && (w.port == 0 || slices.ContainsFunc(ep.Ports, port)) {
			return true
		}
	}
	return false
}
