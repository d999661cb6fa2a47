// Package mirror cleans large conntrack tables quickly. A [Mirror] knows in advance where flows go,
// and finds the stale ones without a pass over the table.
//
//	index, err := mirror.New(table, nil)
//	…
//	go func() { done <- index.Run(ctx) }()
//	…
//	result, err := table.Clean(ctx, matcher, conntrack.CleanOptions{Index: index})
//
// Among a million flows, it deletes 250 in 18 ms, where a pass takes 460 to 950 ms. Most of the 18
// ms is the wait for packets that the kernel is working on.
package mirror
