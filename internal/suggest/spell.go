// Package suggest guesses the known word that a misspelt word means.
package suggest

import (
	"iter"
	"strings"
)

// longest is the maximum length of compared words, in bytes.
const longest = 64

// Nearest returns the most similar of several words, or false if none is near. Among equally
// similar words it returns the first. A word is near if it differs only in case, or in at most two
// letters: added, left out, changed, or swapped with their neighbour. A word of fewer than four
// letters may differ in one letter.
func Nearest(word string, words iter.Seq[string]) (nearest string, ok bool) {
	best := 3
	if len(word) < 4 {
		best = 2
	}
	word = strings.ToLower(word)
	if len(word) > longest {
		return "", false
	}
	for w := range words {
		l := strings.ToLower(w)
		if len(l) > longest || len(l) >= len(word)+best || len(word) >= len(l)+best {
			continue
		}
		if d := distance(word, l); d < best {
			best, nearest, ok = d, w, true
		}
	}

	return nearest, ok
}

// distance is the number of edits between a and b (optimal string alignment).
func distance(a, b string) int {
	var rows [3][longest + 1]int
	for j := range len(b) + 1 {
		rows[0][j] = j
	}
	for i := range len(a) {
		before, above, row := &rows[(i+2)%3], &rows[i%3], &rows[(i+1)%3]
		row[0] = i + 1
		for j := range len(b) {
			changed := above[j]
			if a[i] != b[j] {
				changed++
			}
			row[j+1] = min(changed, above[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}

	return rows[len(a)%3][len(b)]
}
