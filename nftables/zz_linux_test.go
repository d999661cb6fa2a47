package nftables
import ("testing";"time";"github.com/kernlb/kernlb/dataplane";"github.com/kernlb/kernlb/servicemodel")
func TestZZ(t *testing.T) {
	ns, b := newNS(t)
	e := dataplane.New(b, nil)
	s := manyServices(2000)
	name := servicemodel.Name{Namespace: "default", Name: "s7"}
	e.Apply(t.Context(), s)
	defer neighbour(t, ns, 20*time.Millisecond)()
	for sec := range 12 {
		n, obs, br := 0, 0, 0
		var worst time.Duration
		for st := time.Now(); time.Since(st) < time.Second; n++ {
			i, _ := b.Integrity(t.Context())
			if i == dataplane.Broken { br++ }
			at := time.Now()
			r, err := e.Apply(t.Context(), s.WithEndpoints(name, tenEndpoints(7, 11+n%2)))
			worst = max(worst, time.Since(at))
			if err != nil { t.Fatal(err) }
			if r.Observed { obs++ }
		}
		t.Log(sec, n, "observed", obs, "broken", br, worst)
	}
}
