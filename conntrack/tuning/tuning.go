package tuning

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
)

// Config has the desired limits and timeouts, with the same meaning as in kube-proxy. The zero
// value changes nothing. A nil *Config is the zero Config. Times are whole seconds, as in the
// kernel.
type Config struct {
	// MaxPerCore sets the maximum number of flows in the table: this number for each CPU, at most
	// 1,048,576 in all, but at least Min. For a higher maximum, use other means. 0 changes neither
	// the maximum nor the hash table.
	MaxPerCore int
	// Min is the lower bound of the maximum that MaxPerCore sets.
	Min int
	// Cores is the number of CPUs; 0 means the CPUs of the machine.
	Cores int

	// TCPEstablished is the timeout of an idle TCP connection. TCPCloseWait is the timeout of a
	// connection that only its server has closed. 0 leaves the kernel's value unchanged.
	TCPEstablished time.Duration
	TCPCloseWait   time.Duration
	// UDP is the timeout of a UDP flow after its last packet. UDPStream is the timeout of a flow
	// that has had packets in both directions for more than two seconds. 0 leaves the kernel's
	// value unchanged.
	UDP       time.Duration
	UDPStream time.Duration
	// TCPBeLiberal treats packets outside the TCP window as part of their connection, not as
	// invalid. False leaves the kernel's value unchanged.
	TCPBeLiberal bool

	// Lower allows lowering values that are above the desired values. Without it, only values that
	// are still the kernel's defaults are lowered.
	Lower bool
}

// KubeProxy returns the configuration that kube-proxy uses by default.
func KubeProxy() Config {
	return Config{MaxPerCore: 32768, Min: 131072, TCPEstablished: 24 * time.Hour,
		TCPCloseWait: time.Hour}
}

// maxConntrackMax is kube-proxy's upper bound of the maximum that it computes.
const maxConntrackMax = 1 << 20

// hashFactor is kube-proxy's limit of flows per bucket of the hash table.
const hashFactor = 4

// ErrBadConfig says that a configuration is invalid.
var ErrBadConfig = errors.New("bad conntrack tuning")

// Names of the settings, below /proc/sys/net/netfilter.
const (
	settingMax            = "nf_conntrack_max"
	settingBuckets        = "nf_conntrack_buckets"
	settingTCPEstablished = "nf_conntrack_tcp_timeout_established"
	settingTCPCloseWait   = "nf_conntrack_tcp_timeout_close_wait"
	settingTCPBeLiberal   = "nf_conntrack_tcp_be_liberal"
	settingUDP            = "nf_conntrack_udp_timeout"
	settingUDPStream      = "nf_conntrack_udp_timeout_stream"
)

// settings are all settings in the order in which they are set. The hash table comes first, because
// a larger maximum is of no use without it.
var settings = []string{
	settingBuckets, settingMax, settingTCPEstablished, settingTCPCloseWait, settingTCPBeLiberal,
	settingUDP, settingUDPStream,
}

// global are the settings that exist once for the machine: only the initial network namespace can
// write them.
var global = []string{settingBuckets, settingMax}

// kernelDefaults are the initial values of the kernel (net/netfilter/nf_conntrack_proto_tcp.c,
// nf_conntrack_proto_udp.c; kernels before 4.20 have the second value for UDP streams). The maximum
// has no fixed default, because it depends on the memory of the machine.
var kernelDefaults = map[string][]uint64{
	settingTCPEstablished: {432000},
	settingTCPCloseWait:   {60},
	settingUDP:            {30},
	settingUDPStream:      {120, 180},
}

// Setting is one value of the kernel.
type Setting struct {
	Name string `json:"name"` // below /proc/sys/net/netfilter
	Old  uint64 `json:"old"`
	New  uint64 `json:"new"` // equal to Old if nothing changes
	// Note is the reason why the value does not change although a different value was desired.
	// Otherwise it is empty.
	Note string `json:"note,omitempty"`
}

// changes reports whether the setting must be written.
func (s Setting) changes() bool { return s.Old != s.New }

// Plan contains the settings that result from a [Config] on one machine, in the order in which they
// are written.
type Plan []Setting

// Empty reports whether there is nothing to write.
func (p Plan) Empty() bool { return !slices.ContainsFunc(p, Setting.changes) }

// String returns one line for each setting: "nf_conntrack_max: 65536 -> 131072", or the value and
// the reason why it stays.
func (p Plan) String() string {
	lines := make([]string, len(p))
	for i, s := range p {
		lines[i] = fmt.Sprintf("%s: %d", s.Name, s.Old)
		switch {
		case s.changes():
			lines[i] += fmt.Sprintf(" -> %d", s.New)
		case s.Note != "":
			lines[i] += " (" + s.Note + ")"
		}
	}

	return strings.Join(lines, "\n")
}

// plan compares the configuration with the settings of a kernel. It returns an error if the kernel
// lacks a desired setting.
func (c Config) plan(now map[string]uint64, cores int) (Plan, error) {
	want, err := c.want(cmp.Or(c.Cores, cores))
	if err != nil {
		return nil, err
	}
	var p Plan
	for _, name := range settings {
		value, ok := want[name]
		if !ok {
			continue
		}
		old, ok := now[name]
		if !ok {
			return nil, fmt.Errorf("%w: %s: the kernel has no such setting",
				kernelerr.ErrMissingModule, name)
		}

		p = append(p, c.decide(name, old, value))
	}

	return p, nil
}

// want returns the desired values of the settings.
func (c Config) want(cores int) (map[string]uint64, error) {
	want := map[string]uint64{}
	for _, n := range []struct {
		field string
		value int
	}{{"MaxPerCore", c.MaxPerCore}, {"Min", c.Min}, {"Cores", c.Cores}} {
		if n.value < 0 {
			return nil, fmt.Errorf("%w: %s: %d is negative", ErrBadConfig, n.field, n.value)
		}
	}

	if c.MaxPerCore > 0 {
		// As in kube-proxy, the limit comes first, and the least maximum may exceed it.
		limit := min(uint64(c.MaxPerCore)*uint64(cores), maxConntrackMax)
		want[settingMax] = max(limit, uint64(c.Min))
		want[settingBuckets] = want[settingMax] / hashFactor
	}

	for _, d := range []struct {
		field, name string
		value       time.Duration
	}{
		{"TCPEstablished", settingTCPEstablished, c.TCPEstablished},
		{"TCPCloseWait", settingTCPCloseWait, c.TCPCloseWait},
		{"UDP", settingUDP, c.UDP},
		{"UDPStream", settingUDPStream, c.UDPStream},
	} {
		switch {
		case d.value < 0 || d.value%time.Second != 0 || d.value/time.Second > 1<<31-1:
			return nil, fmt.Errorf("%w: %s: %s is not a number of seconds", ErrBadConfig, d.field,
				d.value)
		case d.value > 0:
			want[d.name] = uint64(d.value / time.Second)
		}
	}

	if c.TCPBeLiberal {
		want[settingTCPBeLiberal] = 1
	}
	return want, nil
}

func (c Config) decide(name string, old, want uint64) Setting {
	s := Setting{Name: name, Old: old, New: want}
	switch {
	case old <= want && !(name == settingMax && old == 0):
	case name == settingBuckets:
		s.New = old // a hash table that is larger than needed is harmless
	case !c.Lower && !slices.Contains(kernelDefaults[name], old):
		s.New = old
		s.Note = "stays above the " + strconv.FormatUint(want, 10) + " wanted"
	}

	return s
}
