package keepalived

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// arg returns the one argument of a statement.
func (c *converter) arg(s *statement) (string, bool) {
	if len(s.args()) != 1 || s.block {
		c.fail(s, "want one value")
		return "", false
	}

	return s.args()[0], true
}

func text(s string) (string, error) { return s, nil }

// number reads a number of so many bits. is says what it must be.
func number(text string, bits int, is string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, bits)
	if err != nil {
		return 0, fmt.Errorf("%q is not %s", text, is)
	}
	return n, nil
}

func address(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		err = fmt.Errorf("%q: must be an IP address: names are not resolved", text)
	}
	return a, err
}

func count(text string) (*int, error) {
	n, err := number(text, 16, "a number")
	return new(int(n)), err
}

func weight(text string) (*uint16, error) {
	n, err := number(text, 16, "a weight from 0 to 65535")
	return new(uint16(n)), err
}

func port(text string) (uint16, error) {
	n, err := number(text, 16, "the number of a port")
	if err == nil && n == 0 {
		err = fmt.Errorf("%q is not the number of a port", text)
	}
	return uint16(n), err
}

func wholeSeconds(text string) (time.Duration, error) {
	n, err := number(text, 31, "a number of seconds")
	return time.Duration(n) * time.Second, err
}

// seconds reads a number of seconds, with decimals.
func seconds(text string) (time.Duration, error) {
	s, err := strconv.ParseFloat(text, 64)
	if err != nil || !(s >= 0.001 && s <= math.MaxInt32) {
		return 0, fmt.Errorf("%q is not a number of seconds, from 0.001 on", text)
	}
	return time.Duration(math.Round(s*1e6)) * time.Microsecond, nil
}

func protocol(text string) (string, error) {
	name := strings.ToLower(text)
	if !slices.Contains([]string{"tcp", "udp", "sctp"}, name) {
		return "", fmt.Errorf("%q is not TCP, UDP or SCTP", text)
	}
	return name, nil
}

// scheduler reads the name of a scheduler. Its options are statements of their own.
func scheduler(text string) (string, error) {
	s, err := servicemodel.ParseScheduler(text)
	if err != nil || s == servicemodel.Random || strings.Contains(text, "+") {
		return "", fmt.Errorf("%q is not a scheduler of IPVS", text)
	}
	return text, nil
}

// maxRange bounds the addresses of a range.
const maxRange = 1024

// addresses reads an address, or a range: 10.0.0.1-9, 10.0.0.1-10.0.0.9 or 10.0.0.0/29.
func addresses(text string) (out []netip.Addr, err error) {
	var from netip.Addr
	var within func(netip.Addr) bool
	if p, prefixErr := netip.ParsePrefix(text); prefixErr == nil {
		from, within = p.Masked().Addr(), p.Contains
	} else {
		first, last, isRange := strings.Cut(text, "-")
		switch {
		case !isRange:
			last = first
		case !strings.ContainsAny(last, ".:"): // its last part only
			last = first[:strings.LastIndexAny(first, ".:")+1] + last
		}

		var to netip.Addr
		if from, err = address(first); err == nil {
			to, err = address(last)
		}
		if err != nil {
			return nil, err
		}
		within = func(a netip.Addr) bool { return a.Compare(to) <= 0 }
	}

	for a := from; a.IsValid() && within(a); a = a.Next() {
		if out = append(out, a); len(out) > maxRange {
			return nil, fmt.Errorf("%s has more than %d addresses", text, maxRange)
		}
	}

	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no address", text)
	}
	return out, nil
}
