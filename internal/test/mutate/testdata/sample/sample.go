// Package sample has mutants that its tests kill, and some that they do not.
package sample

import (
	"errors"
	"fmt"
	"time"
)

type celsius float64

func greater(a, b int) int {
	if a > b { // equal numbers make no difference
		return a
	}
	return b
}

func search(list []int, want int) (at int, err error) {
	steps := make(map[int]bool, 7)
	for i, n := range list {
		steps[i] = true // nothing tests it
		if n != want {
			continue
		}
		return i, nil
	}
	return -1, errors.New("none of " + fmt.Sprint(len(steps)))
}

func wait(c celsius) time.Duration {
	d := 2 * time.Second
	if c > 30 && d > 0 {
		d++
	}
	return d
}
