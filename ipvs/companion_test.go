package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// goldenCompanion is the content of the tables after a state with many kinds of frontends was
// applied, and the tables as they are read.
func goldenCompanion(t testing.TB) (companion, [2]*rawTable) {
	t.Helper()
	edits := []func(*sm.Service){
		func(s *sm.Service) { s.SessionAffinity.ClientIP = true },
		restrictedTo("198.51.100.0/24", "192.0.2.0/25", "2001:db8::/32"),
		func(s *sm.Service) {
			s.Name.Name = "local"
			s.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.11"),
				netip.MustParseAddr("fd00:10:96::11")}
			s.Ports[0].NodePort = 30081
			s.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.11")}
			s.ExternalTrafficPolicy = sm.PolicyLocal
		},
	}
	s := sm.State{}.WithNode(goldenNode())
	for i, name := range []string{"sticky", "closed", "local"} {
		svc := goldenService(func(svc *sm.Service) {
			svc.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}),
				netip.MustParseAddr("fd00:10:96::1:" + string(rune('1'+i)))}
			svc.Ports[0].NodePort += uint16(i)
			svc.LoadBalancerIPs = []sm.LoadBalancerIP{
				{Addr: netip.MustParseAddr("2001:db8:113::2" + string(rune('1'+i)))}}
		}, edits[i], func(svc *sm.Service) { svc.Name.Name = name })
		s = s.WithService(svc).WithEndpoints(svc.Name, goldenEndpoints("10.244.1.1", "10.244.2.2"))
	}

	table := resolve(t, nil, s)
	c := ok((&Config{}).withDefaults())(t)
	pl := newPlanner(c)
	pl.assume([]netip.Addr{goldenAddr})
	pl.have.companion.tunables[sysctlForward] = "0"
	pl.have.tunables.Records = pl.have.companion.tunables
	pl.tunables = map[string]string{sysctlForward: "1"}
	pl.have.committed(pl.plan(sm.Diff(nil, table)), 0)
	want := *pl.have.expected()
	return want, rawOf(&want)
}

// rawOf returns the tables with a companion's content.
func rawOf(c *companion) (raws [2]*rawTable) {
	for i, f := range nft.Families {
		raw := &rawTable{sets: map[string]nft.SetInfo{}, chains: map[string]nft.ChainInfo{},
			rules: map[string][]uint64{}}
		raw.elems = map[string]map[string]nft.Elem{}
		add := func(set string, e nft.Elem) {
			if raw.elems[set] == nil {
				raw.elems[set] = map[string]nft.Elem{}
			}
			raw.elems[set][string(e.Key)+string(e.KeyEnd)] = e
		}

		c.elements(f, add)
		for k, r := range c.records {
			if nft.FamilyIndex(k.Addr) == i {
				r.elements(add)
			}
		}

		if f == nft.IPv4 {
			add(setVersion, c.version.elem())
			for name, value := range c.tunables {
				add(setSettings, tunableElem(name, value))
			}
		}

		for _, s := range setsOf(f, c.shapes[i]) {
			raw.sets[s.Name] = nft.SetInfo{Name: s.Name, Spec: s.Spec()}
			raw.Use++
		}

		for _, ch := range newProgram(f, c.rules, testMark, c.shapes[i]) {
			raw.chains[ch.Name] = nft.ChainInfo{Chain: ch.Chain}
			raw.rules[ch.Name] = ch.Hashes()
			raw.Use++
		}

		raws[i] = raw
	}

	return raws
}

// testMark is the mark of an instance that no test uses.
const testMark = allMarks | 7<<20

func TestCompanionsReadBack(t *testing.T) {
	t.Parallel()
	want, raws := goldenCompanion(t)
	got, drift := companionOf("x", testMark, raws)
	require.Empty(t, drift)
	got.version = want.version
	require.True(t, got.equal(&want))
	require.Len(t, got.records, len(want.records))
	require.NotEmpty(t, got.addrs)
	v := ok(versionOf(raws[0].elems[setVersion]))(t)
	require.Equal(t, want.version, v)

	// A companion with any of these changes is not equal.
	for name, change := range map[string]func(*companion){
		"version":  func(c *companion) { c.version.number++ },
		"writing":  func(c *companion) { c.version.writing = true },
		"exists":   func(c *companion) { c.exists[1] = false },
		"whole":    func(c *companion) { c.whole[0] = false },
		"rules":    func(c *companion) { c.rules.MasqueradeMark++ },
		"addrs":    func(c *companion) { c.addrs = nil },
		"records":  func(c *companion) { c.records = nil },
		"tunables": func(c *companion) { c.tunables = nil },
	} {
		other := want
		change(&other)
		require.False(t, want.equal(&other), name)
	}

	for _, set := range addrSets {
		other := want
		other.addrs = maps.Clone(want.addrs)
		other.addrs[set] = want.addrs[set][1:]
		require.False(t, want.equal(&other), set)
	}
}

// damages are possible damages of a companion table, by the text that reports them.
var damages = map[string]func(*rawTable){
	"it is dormant":          func(r *rawTable) { r.Dormant = true },
	"chains and sets":        func(r *rawTable) { r.Use++ },
	"set sources is missing": func(r *rawTable) { delete(r.sets, setSources) },
	"set hairpins is missing": func(r *rawTable) {
		r.sets[setHairpins] = nft.SetInfo{Name: setHairpins}
	},
	"chain admit is not as it should be": func(r *rawTable) {
		r.rules["admit"] = r.rules["admit"][1:]
	},
	"chain input is missing": func(r *rawTable) { delete(r.chains, "input") },
	"chain output is not as it should be": func(r *rawTable) {
		c := r.chains["output"]
		c.Drops = true
		r.chains["output"] = c
	},
	"chain prerouting is not as it should be": func(r *rawTable) {
		c := r.chains["prerouting"]
		c.Prio++
		r.chains["prerouting"] = c
	},
	"set services has": func(r *rawTable) {
		delete(r.elems["service-masquerade-all"], anyElem(r.elems["service-masquerade-all"]))
		r.elems["services"]["x"] = nft.Elem{}
	},
	"set service-masquerade-all has": func(r *rawTable) {
		clear(r.elems["service-masquerade-all"])
	},
	"set sources has no element ": func(r *rawTable) {
		k := anyElem(r.elems[setSources])
		e := r.elems[setSources][k]
		delete(r.elems[setSources], k)
		r.elems[setSources]["\x00"+k[1:]] = e
	},
	"set service-marks is not as it should be": func(r *rawTable) {
		m := r.elems["service-marks"]
		k := anyElem(m)
		e := m[k]
		e.Data = nft.Native32(1)
		m[k] = e
	},
	"set services: a key of 3 bytes": func(r *rawTable) {
		m := r.elems["services"]
		k := anyElem(m)
		m["abc"] = m[k]
		delete(m, k)
	},
	"set cluster-ips: a key of 3 bytes": func(r *rawTable) {
		r.elems[setClusterIPs]["abc"] = nft.Elem{}
	},
	"set node-addresses: a key of 9 bytes": func(r *rawTable) {
		r.elems[setNodeAddrs]["abcdefghi"] = nft.Elem{}
	},
	"set hairpins: a key of 4 bytes": func(r *rawTable) {
		r.elems[setHairpins]["abcd"] = nft.Elem{}
	},
	"set version has 2 elements": func(r *rawTable) {
		r.elems[setVersion]["abcd"] = nft.Elem{}
	},
	"set version has 0 elements": func(r *rawTable) { clear(r.elems[setVersion]) },
	"set version: a key of 5 bytes": func(r *rawTable) {
		r.elems[setVersion] = map[string]nft.Elem{"abcde": {}}
	},
	"settings are missing": func(r *rawTable) { clear(r.elems[setSettings]) },
	`setting "nonsense"`: func(r *rawTable) {
		addComment(r.elems[setSettings], 9, "nonsense")
	},
	"set settings has": func(r *rawTable) {
		addComment(r.elems[setSettings], 9, "masquerade-mark 0x4000")
	},
	`"x" is not the name of a service port`: func(r *rawTable) {
		m := r.elems["services"]
		k := anyElem(m)
		e := m[k]
		e.UserData = nft.AppendComment(nil, "x")
		m[k] = e
	},
	"set services is not as it should be": func(r *rawTable) {
		m := r.elems["services"]
		k := anyElem(m)
		e := m[k]
		e.UserData = nft.AppendComment(nil, nft.CommentOf(e.UserData)+" verdict=cluster")
		m[k] = e
	},
}

func anyElem(m map[string]nft.Elem) string { return slices.Sorted(maps.Keys(m))[0] }

// Each damage is reported, and invalidates the table of its family: none of its records is used.
// The earlier values of tunables are still used.
func TestDamagedCompanionsAreNotBelieved(t *testing.T) {
	t.Parallel()
	for name, damage := range damages {
		want, raws := goldenCompanion(t)
		damage(raws[0])
		got, drift := companionOf("x", testMark, raws)
		require.Len(t, drift, 1, name)
		require.Contains(t, drift[0], "table ip x: ")
		if name != "set services has" { // otherwise the registry's key is reported
			require.Contains(t, drift[0], name)
		}
		require.Equal(t, [2]bool{true, true}, got.exists)
		require.Equal(t, [2]bool{false, true}, got.whole)
		for k := range got.records {
			require.Equal(t, sm.IPv6, k.Family(), name)
		}
		require.NotEmpty(t, got.records)
		if !strings.Contains(name, "settings are") {
			require.Equal(t, want.tunables, got.tunables, name)
		}
	}
}

func TestCompanionsHaveTwoTablesOfOneMaking(t *testing.T) {
	t.Parallel()
	want, raws := goldenCompanion(t)
	raws[1] = nil
	got, drift := companionOf("x", testMark, raws)
	require.Equal(t, []string{"a companion table is missing"}, drift)
	require.Equal(t, [2]bool{true, false}, got.whole)
	require.Less(t, len(got.records), len(want.records))

	_, raws = goldenCompanion(t)
	other := want.rules
	other.MasqueradeMark = 0x8000
	c2 := want
	c2.rules = other
	raws[1] = rawOf(&c2)[1]
	_, drift = companionOf("x", testMark, raws)
	require.Equal(t, []string{"table ip6 x: it was made for other settings"}, drift)

	got, drift = companionOf("x", testMark, [2]*rawTable{})
	require.Empty(t, drift)
	require.Empty(t, got.records)
}

func addComment(m map[string]nft.Elem, number uint32, comment string) {
	m[string(nft.Native32(number))] = nft.Elem{Key: nft.Native32(number),
		UserData: nft.AppendComment(nil, comment)}
}

// The earlier values of sysctls are read even if they are numbered among the settings.
func TestSysctlsOfSettingsAreRead(t *testing.T) {
	t.Parallel()
	m := map[string]nft.Elem{}
	addComment(m, 0, fmt.Sprintf("layout %d", layoutNumber))
	addComment(m, 1, "masquerade-mark 0x4000")
	addComment(m, 2, "sysctl net/ipv4/ip_forward 0")
	addComment(m, 3, "sysctl kernel/panic 0")
	addComment(m, 4, "pod-cidr 10.244.0.0/16")
	rules, sysctls, err := parseSettings(m)
	require.NoError(t, err)
	require.Equal(t, map[string]string{sysctlForward: "0"}, sysctls)
	require.Equal(t, uint32(0x4000), rules.MasqueradeMark)
	require.Len(t, rules.LocalPods.CIDRs, 1)
}

// Any elements of a set are either read or refused.
func FuzzCompanionOf(f *testing.F) {
	sets := []string{"services", "nodeports", setSources, setClusterIPs, setHairpins, setNodeAddrs,
		setSettings, setVersion, "service-marks"}
	f.Add(byte(0), []byte{10, 96, 0, 10, 6, 0, 0, 0, 0, 80, 0, 0}, []byte{},
		"default/web:http cluster IP")
	f.Add(byte(3), []byte{1}, []byte{2}, "")
	f.Add(byte(2), []byte{1, 2, 3}, []byte{}, "x")
	want, raws := goldenCompanion(f)
	f.Fuzz(func(t *testing.T, set byte, key, end []byte, comment string) {
		if len(comment) > 251 {
			return
		}
		raw := *raws[0]
		name := sets[int(set)%len(sets)]
		raw.elems = maps.Clone(raw.elems)
		raw.elems[name] = maps.Clone(raw.elems[name])
		raw.elems[name][string(key)+string(end)] = nft.Elem{Key: key, KeyEnd: end,
			UserData: nft.AppendComment(nil, comment)}
		got, drift := companionOf("x", testMark, [2]*rawTable{&raw, raws[1]})
		got.version = want.version
		require.True(t, len(drift) > 0 || got.equal(&want) || len(got.records) >= len(want.records))
	})
}

// If a different version has made one of the tables, the reading says so. For a table with other
// damage it does not.
func TestTablesOfAnotherLayoutAreTold(t *testing.T) {
	t.Parallel()
	for i := range nft.Families {
		_, raws := goldenCompanion(t)
		for k, e := range raws[i].elems[setSettings] {
			if strings.HasPrefix(nft.CommentOf(e.UserData), "layout ") {
				e.UserData = nft.AppendComment(nil, "layout 99")
				raws[i].elems[setSettings][k] = e
			}
		}

		c, drift := companionOf("x", testMark, raws)
		require.True(t, c.other)
		require.Len(t, drift, 1)
		delete(raws[i].elems, setSettings)
		c, drift = companionOf("x", testMark, raws)
		require.False(t, c.other)
		require.Len(t, drift, 1)
	}
}

func TestCommentsThatAreNotOursAreRefused(t *testing.T) {
	t.Parallel()
	k := sm.FrontendKey{Addr: netip.MustParseAddr("203.0.113.10"), Protocol: sm.TCP, Port: 80}
	for _, s := range []string{
		"", "default/web cluster IP mark=x", "default/web cluster IP mark=",
		"default/web cluster IP mark=99999999999", "default/web cluster IP routed=1",
	} {
		_, err := parseRecord(s, k)
		require.Error(t, err, s)
	}

	r := ok(parseRecord("default/web:http loadbalancer IP internal=cluster external=local "+
		"masquerade=host affinity=60 mark=7 routed", k))(t)
	require.Equal(t, allMarks+7, r.mark)
	require.Equal(t, time.Minute, r.fe.Affinity)
	require.Equal(t, sm.FromHost, r.fe.Masquerade)
	require.False(t, r.nat)
}

func FuzzParseRecord(f *testing.F) {
	k := sm.FrontendKey{Addr: netip.MustParseAddr("203.0.113.10"), Protocol: sm.TCP, Port: 80}
	f.Add("default/web:http loadbalancer IP internal=cluster external=local mark=7 routed")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseRecord(s, k)
		if err != nil {
			return
		}
		again := ok(parseRecord(r.comment(), k))(t)
		require.True(t, again.equal(r), r.comment())
	})
}
