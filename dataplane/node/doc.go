// Package node checks whether a node can carry the connections of its services: whether it
// forwards, whether other programs drop packets, whether the table of connections is full, and
// more. The kernel can hold every service as wanted while clients reach none of them; these checks
// name such causes. They change nothing.
//
//	checker := node.NewChecker(nil)
//	report := checker.Report(ctx, engine.Status().Held)
//
// Packages dataplane/health, dataplane/page and dataplane/metrics show reports if they are given a
// checker's method:
//
//	proxy := health.NewProxy(engine, &health.ProxyConfig{Node: checker.Report})
//
// A checker reads the kernel only when it is asked.
package node
