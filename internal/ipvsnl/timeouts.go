package ipvsnl

import (
	"fmt"
	"math"
	"time"
)

// Timeouts are how long idle connections of all services of the network namespace are kept
// (IPVS_CMD_SET_CONFIG). When setting them, zero leaves a timeout as it is. A fresh namespace has
// 15 minutes, 2 minutes and 5 minutes.
type Timeouts struct {
	TCP    time.Duration // established TCP connections; whole seconds
	TCPFin time.Duration // TCP connections after a FIN; whole seconds
	UDP    time.Duration // whole seconds
}

// Attributes of the first level of a message, in the kernel's order.
const (
	cmdAttrService       uint16 = iota + 1 // IPVS_CMD_ATTR_SERVICE
	cmdAttrDestination                     // IPVS_CMD_ATTR_DEST
	cmdAttrDaemon                          // IPVS_CMD_ATTR_DAEMON
	cmdAttrTimeoutTCP                      // IPVS_CMD_ATTR_TIMEOUT_TCP
	cmdAttrTimeoutTCPFin                   // IPVS_CMD_ATTR_TIMEOUT_TCP_FIN
	cmdAttrTimeoutUDP                      // IPVS_CMD_ATTR_TIMEOUT_UDP
)

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

// seconds is d as the kernel wants it.
func seconds(d time.Duration) uint32 { return uint32(d / time.Second) }

// appendTimeouts appends the attributes of t, without those that are zero.
func appendTimeouts(b []byte, t Timeouts) []byte {
	if t.TCP != 0 {
		b = appendU32(b, cmdAttrTimeoutTCP, seconds(t.TCP))
	}
	if t.TCPFin != 0 {
		b = appendU32(b, cmdAttrTimeoutTCPFin, seconds(t.TCPFin))
	}
	if t.UDP != 0 {
		b = appendU32(b, cmdAttrTimeoutUDP, seconds(t.UDP))
	}
	return b
}

// decodeTimeouts decodes the attributes of IPVS_CMD_SET_CONFIG. A kernel without TCP or UDP in IPVS
// (CONFIG_IP_VS_PROTO_TCP) leaves theirs out.
func decodeTimeouts(data []byte) (t Timeouts, err error) {
	a := attrs{what: "timeouts", rest: data}
	for a.next() {
		switch a.typ {
		case cmdAttrTimeoutTCP:
			t.TCP = a.seconds()
		case cmdAttrTimeoutTCPFin:
			t.TCPFin = a.seconds()
		case cmdAttrTimeoutUDP:
			t.UDP = a.seconds()
		}
	}
	return t, a.err
}

// seconds returns the data as a number of seconds.
func (a *attrs) seconds() time.Duration { return time.Duration(a.u32()) * time.Second }
