package iptables

import (
	"os"
	"testing"

	"github.com/kernlb/kernlb/internal/netnstest"
)

func TestMain(m *testing.M) {
	if seed := os.Getenv(envWriter); seed != "" {
		os.Exit(writeUntilKilled(seed))
	}
	netnstest.Main(m)
}
