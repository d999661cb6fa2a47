// Package check tells which backends of a load balancer answer.
//
// A [Target] is an address and a question ([Spec]): a TCP connection, an HTTP or HTTPS request, or
// a request to gRPC's health service. A [Monitor] asks each of its targets again and again, and
// reports each change of a verdict. It knows no services: a backend of several services is one
// target, and is asked once.
//
// # Verdicts
//
// The first answer of an unknown target decides. After that, a target that is up goes down after
// Fall failures in a row, and comes up again after Rise successes in a row. A target that flaps
// faster than that keeps its verdict. After an answer that contradicts the verdict, the next check
// begins after Retry instead of Interval. With an interval of 10 s and a retry after 1 s, three
// failures take two seconds longer than one.
//
// A program that restarts passes the earlier verdicts to [Monitor.Set]. So a target that was in use
// stays in use until it fails.
//
// # Load
//
// A random part (Jitter) shortens each interval, so that checks spread. A monitor asks a bounded
// number of targets at a time. A target that waits for its turn is late, but not failed: the
// timeout begins with the connection. Each check is a connection of its own, like a client's.
package check
