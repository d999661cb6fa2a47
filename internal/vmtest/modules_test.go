package vmtest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const modulesDep = "" +
	"kernel/net/netfilter/ipvs/ip_vs.ko.xz: " +
	"kernel/net/netfilter/nf_conntrack.ko.xz kernel/lib/libcrc32c.ko.xz" + `
kernel/net/netfilter/ipvs/ip_vs_rr.ko.xz: kernel/net/netfilter/ipvs/ip_vs.ko.xz
kernel/net/netfilter/nf_conntrack.ko.xz: kernel/net/ipv4/netfilter/nf_defrag_ipv4.ko.xz
kernel/net/ipv4/netfilter/nf_defrag_ipv4.ko.xz:
kernel/lib/libcrc32c.ko.xz:
kernel/drivers/net/dummy.ko:
kernel/drivers/char/virtio-rng.ko.zst:
kernel/a/loop-a.ko: kernel/a/loop-b.ko
kernel/a/loop-b.ko: kernel/a/loop-a.ko
`

func TestModulesComeWithAllTheyNeed(t *testing.T) {
	t.Parallel()
	index := parseModulesDep(modulesDep)
	for name, c := range map[string]struct {
		patterns, want []string
	}{
		"nothing":   {nil, []string{}},
		"no match":  {[]string{"nft_*"}, []string{}},
		"one alone": {[]string{"dummy"}, []string{"kernel/drivers/net/dummy.ko"}},
		"a dash is a dash or an underscore": {[]string{"virtio-rng", "virtio_rng"},
			[]string{"kernel/drivers/char/virtio-rng.ko.zst"}},
		"needs of needs": {[]string{"ip_vs_*"}, []string{
			"kernel/lib/libcrc32c.ko.xz", "kernel/net/ipv4/netfilter/nf_defrag_ipv4.ko.xz",
			"kernel/net/netfilter/ipvs/ip_vs.ko.xz", "kernel/net/netfilter/ipvs/ip_vs_rr.ko.xz",
			"kernel/net/netfilter/nf_conntrack.ko.xz",
		}},
		"a circle ends": {[]string{"loop_a"}, []string{"kernel/a/loop-a.ko", "kernel/a/loop-b.ko"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := index.choose(c.patterns)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	_, err := index.choose([]string{"[a"})
	require.ErrorContains(t, err, `module pattern "[a"`)
}

func FuzzModulesDep(f *testing.F) {
	f.Add(modulesDep, "ip_vs*")
	f.Add("a.ko:\n: b\nc", "*")
	f.Fuzz(func(t *testing.T, text, pattern string) {
		index := parseModulesDep(text)
		files, err := index.choose([]string{pattern})
		if err != nil {
			return
		}
		have := " " + strings.Join(files, " ") + " "
		for _, file := range files {
			for _, need := range index[moduleName(file)].Needs {
				if !strings.Contains(have, " "+need+" ") {
					t.Fatalf("%s needs %s, which was not chosen", file, need)
				}
			}
		}
	})
}
