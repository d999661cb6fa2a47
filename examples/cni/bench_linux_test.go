package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
)

// rival is a plugin in the comparison.
type rival struct {
	name, program string
	fields        object
}

var rivals = []rival{
	{"kernlb", "kernlb-portmap", nil},
	{"portmap-nftables", "portmap", object{"backend": "nftables"}},
	{"portmap-iptables", "portmap", object{"backend": "iptables"}},
}

// command returns the plugin as a runtime calls it, for a container with three ports and addresses
// of both families.
func (r rival) command(h *host, command string, c *container, first int) *exec.Cmd {
	ports := []mapping{tcp(first, 80), tcp(first+1, 81), tcp(first+2, 82)}
	cmd := h.plugin(command, c, request(ports, r.fields))
	cmd.Path = filepath.Join(h.plugins, r.program)
	return cmd
}

// BenchmarkProcess measures a plugin that publishes three ports of a container with addresses of
// both families, and removes them, while there are other containers. It reports the time, the
// processor time with that of child processes, and the numbers of chains, rules and elements that
// one container has in the kernel.
func BenchmarkProcess(b *testing.B) {
	for _, others := range []int{1, 100} {
		for _, r := range rivals {
			b.Run(fmt.Sprintf("%s/%d-others", r.name, others), func(b *testing.B) {
				h := newHost(b)
				c := h.newContainer("c")
				run := func(command string, c *container, first int) (spent time.Duration) {
					cmd := r.command(h, command, c, first)
					must.OK(h.try(cmd))(b)
					return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
				}

				for i := range others {
					c := *c
					c.Name = fmt.Sprint("other", i)
					run("ADD", &c, 10000+10*i)
				}

				benchProcess(b, h, func(command string) time.Duration {
					return run(command, c, 8000)
				})
			})
		}
	}
}

func benchProcess(b *testing.B, h *host, run func(command string) time.Duration) {
	before := h.objects()
	var add, del, addCPU, delCPU time.Duration
	var after map[string]int
	for b.Loop() {
		began := time.Now()
		addCPU += run("ADD")
		add += time.Since(began)
		if after == nil {
			after = h.objects()
		}
		began = time.Now()
		delCPU += run("DEL")
		del += time.Since(began)
	}

	require.Equal(b, before, h.objects())
	for name, d := range map[string]time.Duration{"ADD-ms": add, "DEL-ms": del,
		"ADD-cpu-ms": addCPU, "DEL-cpu-ms": delCPU} {
		b.ReportMetric(d.Seconds()*1000/float64(b.N), name)
	}

	for name := range after {
		b.ReportMetric(float64(after[name]-before[name]), name)
	}
}

// objects counts the nf_tables objects on the host. iptables also keeps its rules there.
func (h *host) objects() map[string]int {
	out := must.OK(h.try(exec.Command("nft", "-j", "list", "ruleset")))(h.tb)
	var ruleset struct {
		Nftables []map[string]struct{ Elem []json.RawMessage }
	}
	require.NoError(h.tb, json.Unmarshal([]byte(out), &ruleset))
	n := map[string]int{"chains": 0, "rules": 0, "elements": 0}
	for _, o := range ruleset.Nftables {
		for kind, value := range o {
			switch kind {
			case "chain", "rule":
				n[kind+"s"]++
			case "set", "map":
				n["elements"] += len(value.Elem)
			}
		}
	}

	return n
}
