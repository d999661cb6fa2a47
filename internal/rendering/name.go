package rendering

import "strings"

// The letters and digits of names.
const (
	Capitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	Letters  = Capitals + "abcdefghijklmnopqrstuvwxyz"
	Digits   = "0123456789"
)

// IsName reports whether s has 1 to most characters, begins with one of first, and goes on with
// characters of all. A regular expression would cost each process time at its start.
func IsName(s string, most int, first, all string) bool {
	return s != "" && len(s) <= most && strings.Contains(first, s[:1]) && strings.Trim(s, all) == ""
}
