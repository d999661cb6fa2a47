package main

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/ipvs"
)

func TestTimeoutsOfIPVSAreFlags(t *testing.T) {
	t.Parallel()
	var o options
	_, err := o.parse([]string{"show", "-ipvs-tcp-timeout", "2h", "-ipvs-tcpfin-timeout", "30s",
		"-ipvs-udp-timeout", "20s"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, ipvs.Timeouts{TCP: 2 * time.Hour, TCPFin: 30 * time.Second,
		UDP: 20 * time.Second}, o.ipvs.Timeouts)
	for flag, value := range map[string]string{"-ipvs-tcp-timeout": "-1s",
		"-ipvs-tcpfin-timeout": "1.5s", "-ipvs-udp-timeout": "1ns"} {
		var o options
		_, err := o.parse([]string{"show", flag, value}, io.Discard)
		require.ErrorContains(t, err, flag+": "+value+": want whole seconds")
	}
}
