// Package check tells which backends of a load balancer answer.
//
// A [Target] is an address and what to ask there ([Spec]): a TCP connection, an HTTP or HTTPS
// request, or the health service of gRPC. A [Monitor] asks each of its targets again and again, and
// reports when the verdict about one changes. It knows no services: a backend that several of them
// use is one target, and is asked once.
//
// # Verdicts
//
// The first answer of a target that nothing is known of decides. After that it takes Fall failures
// in a row until a target that was up is down, and Rise successes until it is up again, so one that
// flaps faster than that keeps its verdict. After an answer that contradicts the verdict, the next
// check begins after Retry, not Interval: with an interval of 10 s and a retry after 1 s, three
// failures take two seconds more than the first.
//
// Who restarts says what was known before ([Monitor.Set]), so that a target that was in use stays
// in use until it fails.
//
// # Load
//
// A random part (Jitter) shortens each interval, so that checks spread. A monitor asks a bounded
// number of targets at a time. What waits for its turn is late, not failed: the timeout begins with
// the connection. Each check is a connection of its own, as those of clients are.
package check
