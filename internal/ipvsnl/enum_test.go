package ipvsnl

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEnumsHaveTheKernelsNumbersAndNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		value  fmt.Stringer
		number uint64
		want   string
	}{
		{CommandNewService, 1, "new service"},
		{CommandGetDestination, 8, "get destination"},
		{CommandSetConfig, 12, "set config"},
		{Command(99), 99, "command 99"},
		{FamilyIPv4, 2, "IPv4"},
		{FamilyIPv6, 10, "IPv6"},
		{Family(1), 1, "family 1"},
		{TCP, 6, "TCP"},
		{UDP, 17, "UDP"},
		{SCTP, 132, "SCTP"},
		{Protocol(50), 50, "protocol 50"},
		{ForwardMasquerade, 0, "masquerade"},
		{ForwardBypass, 4, "bypass"},
		{ForwardingMethod(0xffffffff), 0xffffffff, "forwarding method 4294967295"},
	} {
		require.Equal(t, tt.want, tt.value.String())
		require.Equal(t, fmt.Sprint(tt.number), fmt.Sprintf("%d", tt.value), tt.want)
	}
}

// The numbers of include/uapi/linux/ip_vs.h. The test checks the last one of each list.
func TestAttributesHaveTheKernelsNumbers(t *testing.T) {
	t.Parallel()
	require.Equal(t, uint16(6), CmdAttrTimeoutUDP)
	require.Equal(t, uint16(11), SvcAttrPEName)
	require.Equal(t, uint16(12), SvcAttrStats64)
	require.Equal(t, uint16(11), DestAttrFamily)
	require.Equal(t, uint16(15), DestAttrTunnelFlags)
	require.Equal(t, uint16(5), StatsAttrOutBytes)
}
