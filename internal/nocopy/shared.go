// Package nocopy lets the packages of this module read the memory that values share, without
// copies. It also gives them methods that only engines and backends need. Other modules cannot name
// [Key], and get copies.
package nocopy

// Key is the argument of methods that return shared values. The caller must not modify these.
type Key struct{}

// Of returns the form of v that reads it without copies.
func Of[R any](v interface{ Shared(Key) R }) R { return v.Shared(Key{}) }
