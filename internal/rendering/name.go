package rendering

import (
	"fmt"
	"slices"
	"strings"
)

// The letters and digits of names.
const (
	Capitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	Letters  = Capitals + "abcdefghijklmnopqrstuvwxyz"
	Digits   = "0123456789"
)

// IsName reports whether s has 1 to most characters, begins with a character of first, and
// otherwise has only characters of all. A regular expression would cost each process time at its
// start.
func IsName(s string, most int, first, all string) bool {
	return s != "" && len(s) <= most && strings.Contains(first, s[:1]) && strings.Trim(s, all) == ""
}

// MostTableName is the maximum length of a table name.
const MostTableName = 63

// othersTables are table names of other programs: kube-proxy, packages counters and livetrace, and
// iptables.
var othersTables = []string{"kube-proxy", "kernlb-counters", "kernlb-trace", "filter", "nat",
	"mangle", "raw", "security"}

// IsTableName reports whether nft accepts a table name without quotes. It ignores nft's long list
// of reserved words: nft refuses a listing with a table called "drop".
func IsTableName(s string) bool { return IsName(s, MostTableName, Letters, Letters+Digits+"_.-") }

// CheckTable returns an error if an instance of the backend may not use the table name.
func CheckTable(backend, name string) error {
	if slices.Contains(othersTables, name) {
		return fmt.Errorf("%s: table name %q: another program uses tables of that name", backend,
			name)
	}

	if !IsTableName(name) {
		return fmt.Errorf("%s: table name %q: want a letter, then letters, digits, \"_\", \"-\" "+
			"or \".\", %d in all at most", backend, name, MostTableName)
	}

	return nil
}
