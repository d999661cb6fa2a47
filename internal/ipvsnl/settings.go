package ipvsnl

import (
	"fmt"
	"math"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// Timeouts are how long the kernel keeps idle connections, for all services of the network
// namespace (IPVS_CMD_SET_CONFIG). When they are set, zero leaves a timeout as it is. A fresh
// namespace has 15 minutes, 2 minutes and 5 minutes.
type Timeouts struct {
	TCP    time.Duration // established TCP connections; whole seconds
	TCPFin time.Duration // TCP connections after a FIN; whole seconds
	UDP    time.Duration // whole seconds
}

// Validate returns an error that names the field at fault. The kernel refuses, with EINVAL, more
// than 2147483647 of its clock ticks: 24 days at 1000 Hz, 99 days at 250 Hz.
func (t Timeouts) Validate() error {
	for i, name := range []string{"TCP", "TCPFin", "UDP"} {
		d := *t.field(CmdAttrTimeoutTCP + uint16(i))
		if d < 0 || d%time.Second != 0 || d > math.MaxInt32*time.Second {
			return fmt.Errorf("%s: %v: want whole seconds, at most %d", name, d, math.MaxInt32)
		}
	}
	return nil
}

// putSeconds appends d in seconds. d must be whole seconds.
func putSeconds(b *rawnl.Batch, typ uint16, d time.Duration) {
	b.NativeU32(typ, uint32(d/time.Second))
}

// seconds returns the data as a number of seconds.
func seconds(it *rawnl.AttrIter) time.Duration {
	return time.Duration(it.NativeU32()) * time.Second
}

// field returns the timeout for an attribute, or nil if there is none.
func (t *Timeouts) field(typ uint16) *time.Duration {
	switch typ {
	case CmdAttrTimeoutTCP:
		return &t.TCP
	case CmdAttrTimeoutTCPFin:
		return &t.TCPFin
	case CmdAttrTimeoutUDP:
		return &t.UDP
	}
	return nil
}

// PutTimeouts appends the attributes of t, without those that are zero.
func PutTimeouts(b *rawnl.Batch, t Timeouts) {
	for typ := CmdAttrTimeoutTCP; typ <= CmdAttrTimeoutUDP; typ++ {
		if d := *t.field(typ); d != 0 {
			putSeconds(b, typ, d)
		}
	}
}

// ParseTimeouts parses the attributes of IPVS_CMD_SET_CONFIG. A kernel without TCP or UDP in IPVS
// (CONFIG_IP_VS_PROTO_TCP) leaves theirs out.
func ParseTimeouts(attrs []byte) (t Timeouts, err error) {
	it := rawnl.Attrs(attrs)
	for it.Next() {
		if d := t.field(it.Type()); d != nil {
			*d = seconds(&it)
		}
	}
	return t, it.Err()
}
