// Package node checks whether a node can carry the connections of its services: whether it forwards
// packets, whether other programs drop packets, whether the conntrack table is full, and more. Even
// if every service is in the kernel as desired, clients may be unable to reach them; these checks
// find out why. They change nothing.
//
//	checker := node.NewChecker(nil)
//	report := checker.Report(ctx, engine.Status().Held)
//
// Packages dataplane/health, dataplane/page and dataplane/metrics show reports if their
// configuration has the checker's method:
//
//	proxy := health.NewProxy(engine, &health.ProxyConfig{Node: checker.Report})
//
// A checker reads the kernel only when Report is called.
package node
