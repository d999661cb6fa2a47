package rendering

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// setting is a field of the node-wide rules. Each of its values is written as a line: the name, a
// space and the value. A field without a value has no line. The line of a bool is only the name.
type setting struct {
	name  string
	field any // a pointer
}

// settingsOf lists the settings in the order of their lines.
func settingsOf(r *servicemodel.Rules) []setting {
	return []setting{
		{"masquerade-mark", &r.MasqueradeMark},
		{"only-family", &r.OnlyFamily},
		{"pod-cidr", &r.LocalPods.CIDRs},
		{"pod-bridge", &r.LocalPods.Bridge},
		{"pod-interface-prefix", &r.LocalPods.InterfacePrefix},
		{"node-ports", &r.NodePorts},
		{"service-cidr", &r.ServiceCIDRs},
		{"localhost-node-ports", &r.LocalhostNodePorts},
		{"masquerade-neighbours", &r.MasqueradeNeighbours},
		{"no-endpoints", &r.NoEndpoints},
		{"forbidden", &r.Forbidden},
	}
}

// lines returns the lines of a setting.
func (s setting) lines() (l []string) {
	switch v := s.field.(type) {
	case *uint32:
		l = append(l, fmt.Sprintf("%s 0x%x", s.name, *v))
	case *servicemodel.Family:
		if *v != 0 {
			l = append(l, s.name+" "+v.String())
		}
	case *[]netip.Prefix:
		for _, p := range *v {
			l = append(l, s.name+" "+p.String())
		}
	case *string:
		if *v != "" {
			l = append(l, s.name+" "+*v)
		}
	case *bool:
		if *v {
			l = append(l, s.name)
		}
	}

	return l
}

// parse sets the field to the value of a line, or adds the value to a list.
func (s setting) parse(value string) error {
	switch v := s.field.(type) {
	case *uint32:
		n, err := strconv.ParseUint(value, 0, 32)
		*v = uint32(n)
		return err
	case *servicemodel.Family:
		return v.UnmarshalText([]byte(value))
	case *[]netip.Prefix:
		p, err := netip.ParsePrefix(value)
		*v = append(*v, p)
		return err
	case *string:
		*v = value
	case *bool:
		*v = true
	}

	return nil
}

// ErrLayout means that the objects in the kernel have a different layout.
var ErrLayout = errors.New("it was made by another version of kernlb")

// Settings returns the number of a layout and node-wide rules as lines. The zero Rules belong to a
// table that was never written, and have no lines.
func Settings(number int, r servicemodel.Rules) []string {
	if r.MasqueradeMark == 0 {
		return nil
	}
	l := []string{fmt.Sprintf("layout %d", number)}
	for _, s := range settingsOf(&r) {
		l = append(l, s.lines()...)
	}
	return l
}

// ParseSettings is the inverse of [Settings]. It fails if the layout differs, or if a line is
// unknown. The error names the unknown line.
func ParseSettings(number int, lines []string) (servicemodel.Rules, error) {
	var r servicemodel.Rules
	if len(lines) == 0 {
		return r, nil
	}
	if got, want := lines[0], fmt.Sprintf("layout %d", number); got != want {
		return r, fmt.Errorf("%w: %q, want %q", ErrLayout, got, want)
	}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, " ")
		err := errors.New("unknown setting")
		for _, s := range settingsOf(&r) {
			if s.name == name {
				err = s.parse(value)
			}
		}

		if err != nil {
			return servicemodel.Rules{}, fmt.Errorf("setting %q: %w", line, err)
		}
	}

	return r, nil
}
