package dataplanetest

// ipvs reports whether the backend under test is IPVS. It keeps connections of its own beside those
// of conntrack, which shows in what becomes of flows; where it does, the stories ask here. The
// table "Where the mechanisms differ" in behaviour.md has all of it.
func (w *world) ipvs() bool { return w.backend.Name() == "ipvs" }
