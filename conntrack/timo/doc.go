// Package timo turns flows into those of github.com/ti-mo/conntrack, which other programs know, and
// back: [To] and [From]. Who does not import it does not depend on that library, which is for Linux
// only; so is this package.
package timo
