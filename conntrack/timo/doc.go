// Package timo converts flows to the type of github.com/ti-mo/conntrack, which other programs use,
// and back: call [To] and [From]. Programs that do not import this package do not depend on that
// library. Both functions are for Linux only.
package timo
