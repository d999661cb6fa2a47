// Package nocopy lets the packages of this module read what values share with one another, without
// copies, and gives them the methods that only engines and backends need. Other modules cannot name
// [Key]; they get copies.
package nocopy

// Key is what a method asks for that hands out shared values. They must not be modified.
type Key struct{}

// Of returns v as something that reads it without copies.
func Of[R any](v interface{ Shared(Key) R }) R { return v.Shared(Key{}) }
