package conntrack

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSynAckBytes(t *testing.T) {
	t.Parallel()

	// IPv4: the kernel fills in id and checksum
	require.Equal(t, "45000028000000004006"+"0000"+"c000020a"+"0a000001"+
		"0004"+"0fa0"+"00000000"+"00000001"+"5012"+"0000"+"d422"+"0000",
		hex.EncodeToString(synAck(ap("192.0.2.10:4"), ap("10.0.0.1:4000"))))
	require.Equal(t,
		"60000000"+"0014"+"06"+"40"+"20010db8000000000000000000000010"+"fd000000000000000000000000"+
			"000001"+
			"0004"+"0fa0"+"00000000"+"00000001"+"5012"+"0000"+"7563"+"0000",
		hex.EncodeToString(synAck(ap("[2001:db8::10]:4"), ap("[fd00::1]:4000"))))
}

func TestStrayBytes(t *testing.T) {
	t.Parallel()
	require.Equal(t, "4500002a000000004006"+"0000"+"c000020a"+"0a000001"+
		"0004"+"0fa0"+"00000000"+"00000001"+"5018"+"0000"+"d41a"+"0000"+"0000",
		hex.EncodeToString(stray(ap("192.0.2.10:4"), ap("10.0.0.1:4000"))))
}

func TestChecksumsAddUp(t *testing.T) {
	t.Parallel()
	for _, ends := range [][2]string{
		{"192.0.2.10:4", "10.0.0.1:4000"}, {"255.255.255.255:65535", "255.255.255.255:65535"},
		{"[2001:db8::10]:4", "[fd00::1]:4000"}, {"[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
			"[ffff::]:65535"},
	} {
		src, dst := ap(ends[0]), ap(ends[1])
		for data, packet := range [][]byte{0: synAck(src, dst), 2: stray(src, dst)} {
			if packet != nil {
				segment := packet[len(packet)-tcpHeader-data:]
				require.Zero(t, tcpChecksum(src.Addr(), dst.Addr(), segment),
					"%s: with its checksum, the sum is all ones", ends)
			}
		}
	}
}
