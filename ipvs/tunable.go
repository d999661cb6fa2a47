package ipvs

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
)

// A tunable is a value of the network namespace that the backend sets and later restores. Its name
// is the path under /proc/sys for a sysctl, and one of the names below for a timeout of IPVS, in
// seconds. The companion records the earlier value before the tunable is set. Package sysctls
// implements the rest.

const (
	sysctlForward = "net/ipv4/ip_forward"
	sysctlIPVS    = "net/ipv4/vs/" // prefix of the sysctls of IPVS

	timeoutPrefix = "timeout "
	timeoutTCP    = timeoutPrefix + "tcp"
	timeoutTCPFin = timeoutPrefix + "tcpfin"
	timeoutUDP    = timeoutPrefix + "udp"
)

func isTimeout(name string) bool { return strings.HasPrefix(name, timeoutPrefix) }

// sysctlValues are the sysctls that a configuration sets, with their values.
func sysctlValues(strictARP bool) map[string]string {
	m := map[string]string{
		sysctlIPVS + "conntrack":                 "1",
		sysctlIPVS + "expire_nodest_conn":        "1",
		sysctlIPVS + "expire_quiescent_template": "1",
		sysctlForward:                            "1",
	}
	if strictARP {
		m["net/ipv4/conf/all/arp_ignore"] = "1"
		m["net/ipv4/conf/all/arp_announce"] = "2"
	}

	return m
}

// tunables are the tunables that a configuration sets, with their values.
func (c *Config) tunables() map[string]string {
	m := sysctlValues(c.StrictARP)
	for name, value := range timeoutValues(ipvsnl.Timeouts(c.Timeouts)) {
		if value != "0" {
			m[name] = value
		}
	}

	return m
}

// timeoutValues are the values of the timeouts of IPVS.
func timeoutValues(t ipvsnl.Timeouts) map[string]string {
	text := func(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }
	return map[string]string{timeoutTCP: text(t.TCP), timeoutTCPFin: text(t.TCPFin),
		timeoutUDP: text(t.UDP)}
}

// timeoutsOf is the inverse of timeoutValues. A missing or invalid value is zero.
func timeoutsOf(values map[string]string) ipvsnl.Timeouts {
	seconds := func(name string) time.Duration {
		n, _ := strconv.ParseUint(values[name], 10, 31)
		return time.Duration(n) * time.Second
	}

	return ipvsnl.Timeouts{TCP: seconds(timeoutTCP), TCPFin: seconds(timeoutTCPFin),
		UDP: seconds(timeoutUDP)}
}

// tunableNames are the names of all tunables. The index of a name is part of the format in the
// kernel: see [tunableElem]. Append new names.
var tunableNames = append(slices.Sorted(maps.Keys(sysctlValues(true))),
	timeoutTCP, timeoutTCPFin, timeoutUDP)

// tunableNumbers is the first number of tunables in the set of settings. The node-wide rules have
// lower numbers.
const tunableNumbers = 1 << 16

// tunableElem is the element that records the earlier value of a tunable: "sysctl
// net/ipv4/ip_forward 0".
func tunableElem(name, value string) nft.Elem {
	number := tunableNumbers + slices.Index(tunableNames, name)
	return nft.Elem{Key: nft.Native32(uint32(number)),
		UserData: nft.AppendComment(nil, sysctls.Record(name, value))}
}
