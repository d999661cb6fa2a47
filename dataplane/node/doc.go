// Package node checks whether a node can carry the connections of its services: whether it
// forwards, whether other programs drop packets, whether the conntrack table is full, and more. The
// kernel can hold every service as wanted although clients reach no service; these checks find the
// causes. They change nothing.
//
//	checker := node.NewChecker(nil)
//	report := checker.Report(ctx, engine.Status().Held)
//
// Packages dataplane/health, dataplane/page and dataplane/metrics show reports if their
// configuration contains a checker's method:
//
//	proxy := health.NewProxy(engine, &health.ProxyConfig{Node: checker.Report})
//
// A checker reads the kernel only when Report is called.
package node
