package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernlb/kernlb/internal/test/growth"
)

// growing are files whose last line is repeated, with its number for %d.
var growing = map[string]string{
	"lists":          header + "nodePortAddresses:\n- 10.0.0.0/8",
	"wrong lists":    header + "nodePortAddresses:\n- x%d",
	"unknown fields": header + "f%d: 1",
	"fields twice":   header + "mode: nftables",
	"gates":          header + "featureGates:\n  Gate%d: true",
	"aliases":        header + "x: &x [1]\ny%d: *x",
}

func TestTimeAndMemoryGrowAsFilesDo(t *testing.T) {
	name := filepath.Join(t.TempDir(), "config.yaml")
	for test, text := range growing {
		t.Run(test, func(t *testing.T) {
			end := strings.LastIndex(text, "\n") + 1
			growth.Linear(t, 1<<15, func(n int) string {
				var b strings.Builder
				b.WriteString(text[:end])
				for i := range n {
					b.WriteString(strings.ReplaceAll(text[end:], "%d", fmt.Sprint(i)) + "\n")
				}
				return b.String()
			}, func(text string) {
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Error(err)
				}
				_, _ = parseOptions([]string{"--config", name, "--hostname-override=node1"})
			})
		})
	}
}
