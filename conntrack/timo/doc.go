// Package timo converts flows to the type of github.com/ti-mo/conntrack, which other programs use,
// and back: call [To] and [From]. Only programs that import this package depend on that library.
// Both are for Linux only.
package timo
