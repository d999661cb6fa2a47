// Package shared lets the packages of this module read what values share with one another, without
// copies. Other modules cannot name [Key], and are given copies only.
package shared

// Key is what a method asks for that hands out shared values. They must not be modified.
type Key struct{}

// Of returns v as something that reads it without copies.
func Of[R any](v interface{ Shared(Key) R }) R { return v.Shared(Key{}) }
