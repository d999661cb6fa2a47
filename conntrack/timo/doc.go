// Package timo turns flows into those of github.com/ti-mo/conntrack, which other programs know, and
// back: call [To] and [From]. Only programs that import this package depend on that library. Both
// are for Linux only.
package timo
