package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kernlb/kernlb/internal/test/growth"
)

var growing = map[string]string{
	"lists":          header + "nodePortAddresses:\n«- 10.0.0.0/8\n»",
	"wrong lists":    header + "nodePortAddresses:\n«- x%d\n»",
	"unknown fields": header + "«f%d: 1\n»",
	"fields twice":   header + "«mode: nftables\n»",
	"gates":          header + "featureGates:\n«  Gate%d: true\n»",
	"aliases":        header + "x: &x [1]\n«y%d: *x\n»",
}

func TestTimeAndMemoryGrowAsFilesDo(t *testing.T) {
	name := filepath.Join(t.TempDir(), "config.yaml")
	growth.Texts(t, 1<<15, growing, func(text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
		_, _ = parseOptions([]string{"--config", name, "--hostname-override=node1"})
	})
}
