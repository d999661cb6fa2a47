package iptables

import (
	"testing"

	"github.com/kernlb/kernlb/internal/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }
