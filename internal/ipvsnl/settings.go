package ipvsnl

import (
	"fmt"
	"math"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// Timeouts are how long idle connections of all services of the network namespace are kept
// (IPVS_CMD_SET_CONFIG). When setting them, zero leaves a timeout as it is. A fresh namespace has
// 15 minutes, 2 minutes and 5 minutes.
type Timeouts struct {
	TCP    time.Duration // established TCP connections; whole seconds
	TCPFin time.Duration // TCP connections after a FIN; whole seconds
	UDP    time.Duration // whole seconds
}

// Validate returns an [ErrInvalid] that names the field at fault. The kernel refuses, with EINVAL,
// more than 2147483647 of its clock ticks: 24 days at 1000 Hz, 99 days at 250 Hz.
func (t Timeouts) Validate() error {
	fields := []struct {
		name  string
		value time.Duration
	}{{"tcp", t.TCP}, {"tcp fin", t.TCPFin}, {"udp", t.UDP}}
	for _, f := range fields {
		if err := wholeSeconds(f.value, math.MaxInt32*time.Second); err != nil {
			return invalid("timeouts", f.name, "%v", err)
		}
	}
	return nil
}

// wholeSeconds reports what is wrong with d as a number of seconds up to limit.
func wholeSeconds(d, limit time.Duration) error {
	switch {
	case d < 0:
		return fmt.Errorf("%v is negative", d)
	case d%time.Second != 0:
		return fmt.Errorf("%v is not a whole number of seconds", d)
	case d > limit:
		return fmt.Errorf("%v is more than %v", d, limit)
	}
	return nil
}

// putSeconds appends d, which is a whole number of seconds.
func putSeconds(b *rawnl.Batch, typ uint16, d time.Duration) {
	b.NativeU32(typ, uint32(d/time.Second))
}

// seconds returns the data as a number of seconds.
func seconds(it *rawnl.AttrIter) time.Duration {
	return time.Duration(it.NativeU32()) * time.Second
}

// field returns the timeout that an attribute has, nil if none.
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

// Info describes the IPVS of the running kernel (IPVS_CMD_GET_INFO).
type Info struct {
	Version Version
	// ConnTableSize is the number of buckets of the connection table. Kernels that have a table for
	// each network namespace (7.2 has) let it grow, and have none, so 0, until there has been a
	// service.
	ConnTableSize uint32
}

// Version is the version of IPVS, IP_VS_VERSION_CODE. It has been 1.2.1 since 2005 and says nothing
// about what the kernel can do.
type Version uint32

// String returns the version as NVERSION in include/uapi/linux/ip_vs.h takes it apart, for example
// "1.2.1".
func (v Version) String() string {
	return fmt.Sprintf("%d.%d.%d", v>>16&0xff, v>>8&0xff, v&0xff)
}

// Attributes of the reply to IPVS_CMD_GET_INFO, in the kernel's order.
const (
	InfoAttrVersion       uint16 = iota + 1 // IPVS_INFO_ATTR_VERSION
	InfoAttrConnTableSize                   // IPVS_INFO_ATTR_CONN_TAB_SIZE
)

// parseInfo parses the attributes of IPVS_CMD_SET_INFO.
func parseInfo(attrs []byte) (i Info, err error) {
	it := rawnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case InfoAttrVersion:
			i.Version = Version(it.NativeU32())
		case InfoAttrConnTableSize:
			i.ConnTableSize = it.NativeU32()
		}
	}
	return i, it.Err()
}
