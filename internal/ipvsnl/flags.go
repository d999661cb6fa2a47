package ipvsnl

import (
	"fmt"
	"strings"
)

// ServiceFlags are the flags of a service (IP_VS_SVC_F_*, include/uapi/linux/ip_vs.h).
type ServiceFlags uint32

// The flags of a service. What the scheduler flags mean is up to the scheduler; the others ignore
// them.
const (
	// IP_VS_SVC_F_PERSISTENT: a client keeps its destination for Timeout
	FlagPersistent ServiceFlags = 0x01
	// IP_VS_SVC_F_HASHED: the kernel's own, on every service it lists
	FlagHashed ServiceFlags = 0x02
	// IP_VS_SVC_F_ONEPACKET: schedule each UDP datagram by itself
	FlagOnePacket      ServiceFlags = 0x04
	FlagSchedulerOne   ServiceFlags = 0x08 // IP_VS_SVC_F_SCHED1
	FlagSchedulerTwo   ServiceFlags = 0x10 // IP_VS_SVC_F_SCHED2
	FlagSchedulerThree ServiceFlags = 0x20 // IP_VS_SVC_F_SCHED3

	// FlagFallback, for sh and mh: take another destination where the chosen one is overloaded or
	// has weight 0 (IP_VS_SVC_F_SCHED_SH_FALLBACK; IP_VS_SVC_F_SCHED_MH_FALLBACK,
	// include/net/ip_vs.h).
	FlagFallback = FlagSchedulerOne
	// FlagHashPort, for sh and mh: choose by source address and port, not by address alone
	// (IP_VS_SVC_F_SCHED_SH_PORT; IP_VS_SVC_F_SCHED_MH_PORT).
	FlagHashPort = FlagSchedulerTwo
)

var serviceFlagNames = []string{"persistent", "hashed", "one-packet", "sched-1", "sched-2",
	"sched-3"}

// String returns the names of the flags, joined by "|", or "none".
func (f ServiceFlags) String() string { return flagNames(serviceFlagNames, uint32(f)) }

// flagNames joins the names of the bits of v, lowest first. Bits without a name are shown as a
// number.
func flagNames(names []string, v uint32) string {
	var parts []string
	for i, name := range names {
		if bit := uint32(1) << i; v&bit != 0 {
			parts = append(parts, name)
			v &^= bit
		}
	}
	if v != 0 {
		parts = append(parts, fmt.Sprintf("%#x", v))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, "|")
}
