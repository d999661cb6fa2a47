package rendering

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

const (
	layout      = "layout"
	mark        = "masquerade-mark"
	onlyFamily  = "only-family"
	podCIDR     = "pod-cidr"
	podBridge   = "pod-bridge"
	podPrefix   = "pod-interface-prefix"
	nodePorts   = "node-ports"
	serviceCIDR = "service-cidr"
	localhost   = "localhost-node-ports"
	neighbours  = "masquerade-neighbours"
	noEndpoints = "no-endpoints"
	forbidden   = "forbidden"
)

// ErrLayout says that the objects in the kernel have another layout.
var ErrLayout = errors.New("it was made by another version of kernlb")

// Settings returns the number of a layout and node-wide rules as lines. The zero Rules, of a table
// that was never written, have no lines.
func Settings(number int, r servicemodel.Rules) []string {
	if r.MasqueradeMark == 0 {
		return nil
	}
	l := []string{fmt.Sprintf("%s %d", layout, number),
		fmt.Sprintf("%s 0x%x", mark, r.MasqueradeMark)}
	if r.OnlyFamily != 0 {
		l = append(l, onlyFamily+" "+r.OnlyFamily.String())
	}
	for _, p := range r.LocalPods.CIDRs {
		l = append(l, podCIDR+" "+p.String())
	}
	if r.LocalPods.Bridge != "" {
		l = append(l, podBridge+" "+r.LocalPods.Bridge)
	}
	if r.LocalPods.InterfacePrefix != "" {
		l = append(l, podPrefix+" "+r.LocalPods.InterfacePrefix)
	}
	for _, p := range r.NodePorts {
		l = append(l, nodePorts+" "+p.String())
	}
	for _, p := range r.ServiceCIDRs {
		l = append(l, serviceCIDR+" "+p.String())
	}
	if r.LocalhostNodePorts {
		l = append(l, localhost)
	}
	if r.MasqueradeNeighbours {
		l = append(l, neighbours)
	}
	if r.NoEndpoints != "" {
		l = append(l, noEndpoints+" "+r.NoEndpoints)
	}
	if r.Forbidden != "" {
		l = append(l, forbidden+" "+r.Forbidden)
	}
	return l
}

// ParseSettings is the inverse of [Settings]. It fails if the layout differs. It also fails on a
// line that it does not know, and names the line.
func ParseSettings(number int, lines []string) (servicemodel.Rules, error) {
	var r servicemodel.Rules
	if len(lines) == 0 {
		return r, nil
	}
	if got, want := lines[0], fmt.Sprintf("%s %d", layout, number); got != want {
		return r, fmt.Errorf("%w: %q, want %q", ErrLayout, got, want)
	}
	for _, line := range lines[1:] {
		name, v, _ := strings.Cut(line, " ")
		var err error
		switch name {
		case mark:
			var m uint64
			m, err = strconv.ParseUint(v, 0, 32)
			r.MasqueradeMark = uint32(m)
		case onlyFamily:
			err = r.OnlyFamily.UnmarshalText([]byte(v))
		case podCIDR:
			r.LocalPods.CIDRs, err = appendPrefix(r.LocalPods.CIDRs, v)
		case podBridge:
			r.LocalPods.Bridge = v
		case podPrefix:
			r.LocalPods.InterfacePrefix = v
		case nodePorts:
			r.NodePorts, err = appendPrefix(r.NodePorts, v)
		case serviceCIDR:
			r.ServiceCIDRs, err = appendPrefix(r.ServiceCIDRs, v)
		case localhost:
			r.LocalhostNodePorts = true
		case neighbours:
			r.MasqueradeNeighbours = true
		case noEndpoints:
			r.NoEndpoints = v
		case forbidden:
			r.Forbidden = v
		default:
			err = fmt.Errorf("unknown setting")
		}
		if err != nil {
			return servicemodel.Rules{}, fmt.Errorf("setting %q: %w", line, err)
		}
	}
	return r, nil
}

func appendPrefix(l []netip.Prefix, s string) ([]netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return nil, err
	}
	return append(l, p), nil
}
