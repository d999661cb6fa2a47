// Package suggest guesses the known word that a misspelt word means.
package suggest

import "strings"

// Nearest returns the known word with the fewest edits from word, ignoring case, or false if all
// differ in more than two letters, or in more than half of the word.
func Nearest(word string, known []string) (nearest string, ok bool) {
	best := min(3, len(word)/2+1)
	for _, k := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(k)); d < best {
			best, nearest, ok = d, k, true
		}
	}

	return nearest, ok
}

// distance returns the number of letters to add, remove or replace to turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}

	return row[len(b)]
}
